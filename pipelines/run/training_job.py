"""Everything that a training run is given."""

import dataclasses

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.distribution.strategy import AnyStrategy
from txl_tf.model_folder import Workdir

from .initial_weights import InitialWeights
from .run_data import RunData


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """Everything that a training run is given."""

    experiment: ExperimentConfig
    data: RunData
    workdir: Workdir
    strategy: AnyStrategy
    watcher: PreemptionWatcher | None = None
    profile_steps: range | None = None
    """Steps to profile, counted from 1."""
    initial: InitialWeights | None = None
    """Weights to begin from; `None` for random ones."""
