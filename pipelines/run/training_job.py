"""Inputs of a training run."""

import dataclasses
from typing import TYPE_CHECKING

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.model_folder import Workdir

from .initial_weights import InitialWeights
from .run_data import RunData

if TYPE_CHECKING:
    from txl_tf.distribution.strategy import AnyStrategy


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """Inputs of a training run."""

    experiment: ExperimentConfig
    data: RunData
    workdir: Workdir
    strategy: "AnyStrategy"
    watcher: PreemptionWatcher | None = None
    profile_steps: range | None = None
    """Steps to profile, counted from 1."""
    initial: InitialWeights | None = None
    """Weights to begin from; `None` for random ones."""
