"""Weights that a run begins from, taken from the folder of another model: `--init-from`."""

import argparse
import functools
import json
from typing import TYPE_CHECKING, Any, Self

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.errors import MismatchError, UsageError
from txl_tf.models.weight_transfer import (
    require_same_weights,
    rows_of_shared_tokens,
    shared_tokens,
    weights_sha256,
)
from txl_tf.run_folder import StepChoice, kind

from .arguments import add_step_argument
from .workdir import Workdir, lasting_path

if TYPE_CHECKING:
    import numpy as np

    from txl_tf.causal_lm.model_source import ModelSource
    from txl_tf.data.tokenizers.tokenizer import Tokenizer
    from txl_tf.training.trainer import Trainer

    from .run_data import RunData

VOCABULARIES = ("same", "shared")
_OPTIONS = ("init_step", "init_vocabulary")
_ANOTHER = "Give what the run was begun with, or choose a new --workdir."


def add_initial_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--init-from`, `--init-step`, `--init-vocabulary` and `--freeze`."""
    group = parser.add_argument_group("initial weights")
    group.add_argument(
        "--init-from",
        metavar="DIR",
        help="begin from the weights of a run, a checkpoint, a converted model or an export",
    )
    add_step_argument(group, "--init-step")
    group.add_argument(
        "--init-vocabulary",
        choices=VOCABULARIES,
        help="same: another vocabulary is refused; shared: only rows of tokens that both have "
        "are taken (default: same)",
    )
    group.add_argument(
        "--freeze",
        metavar="PART",
        nargs="+",
        help="do not train embedding, softmax, layers, layers:3 or layers:0-3 (from 0)",
    )


def overrides_of(arguments: argparse.Namespace) -> list[str]:
    """Returns the settings of `--set` and `--freeze`."""
    overrides = list(arguments.overrides)
    if arguments.freeze is not None:
        overrides.append(f"training.freeze={json.dumps(arguments.freeze)}")
    return overrides


class InitialWeights:
    """Weights of another model that a run begins from.

    `vocabulary` is "same" or "shared". `start` is the description in `run.json` of a run that was
    begun; the source must still have its SHA-256.
    """

    def __init__(
        self,
        folder: str,
        step: StepChoice,
        vocabulary: str,
        start: dict[str, Any] | None = None,
    ) -> None:
        self._folder = lasting_path(folder)
        self._step = step
        self._vocabulary = vocabulary
        self._start = start

    @classmethod
    def of_start(cls, start: dict[str, Any]) -> Self:
        """Returns the weights that a run was begun with, from their description."""
        return cls(start["source"], start["step"], start["vocabulary"], start)

    @functools.cached_property
    def source(self) -> "ModelSource":
        """Source of the weights, opened on first use."""
        from txl_tf.causal_lm.model_source import open_model

        # `start` has a step for every source, but only a run has steps to choose from.
        is_written_down = self._start is not None and kind(self._folder) != "run"
        return open_model(self._folder, None if is_written_down else self._step)

    @property
    def shares_vocabulary(self) -> bool:
        """True if only rows of tokens in both vocabularies are taken."""
        return self._vocabulary == "shared"

    def require_fit(self, experiment: ExperimentConfig) -> None:
        """Raises MismatchError if the weights do not fit the model of a run."""
        require_same_weights(
            self.source.experiment.model,
            experiment.model,
            self._folder,
            shares_vocabulary=self.shares_vocabulary,
        )

    def require_vocabulary(self, identity: dict[str, Any]) -> None:
        """Raises MismatchError if the weights belong to another vocabulary."""
        found = self.source.tokenizer_identity()
        if self.shares_vocabulary:
            if found is None:
                raise MismatchError(
                    "The source has no vocabulary, so its tokens cannot be compared.",
                    where=self._folder,
                    remedy="Convert it again with --data, which keeps the tokenizer.",
                )
        elif found is not None and found["tokenizer_sha256"] != identity["tokenizer_sha256"]:
            raise MismatchError(
                f"The weights are for another vocabulary ({found['tokenizer']}) than that of the "
                f"data set ({identity['tokenizer']}).",
                where=self._folder,
                remedy="Prepare the text with the tokenizer of the source, or take the rows of "
                "tokens that both have with --init-vocabulary shared.",
            )

    @functools.cached_property
    def _read(self) -> "tuple[int | None, dict[str, np.ndarray]]":
        return self.source.read_weights()

    @functools.cached_property
    def description(self) -> dict[str, Any]:
        """`RunDescription.start` of the weights, which are read now.

        MismatchError if the run was begun with other weights.
        """
        step, weights = self._read
        sha256 = weights_sha256(weights)
        start = {
            "source": self._folder,
            "kind": self.source.kind,
            "step": step,
            "vocabulary": self._vocabulary,
            "sha256": sha256,
        }
        if self._start is not None and sha256 != self._start["sha256"]:
            raise MismatchError(
                f"The weights have SHA-256 {sha256[:12]}; the run began from "
                f"{self._start['sha256'][:12]} and has no checkpoint yet.",
                where=self._folder,
                remedy="Restore the source from a copy, or choose a new --workdir.",
            )
        return start

    def assign_to(self, trainer: "Trainer", data: "RunData") -> list[str]:
        """Assigns the weights to a trainer at step 0; returns lines that describe changes."""
        _ = self.description  # compares with the start of the run
        _, weights = self._read
        said = []
        if self.source.stored_as != "float32":
            said.append(
                f"The export stores its weights as {self.source.stored_as}: training begins from "
                "the rounded numbers."
            )
        if self.shares_vocabulary:
            weights, line = self._shared(weights, trainer, data.tokenizer)
            said.append(line)
        trainer.begin_from(weights)
        del self._read  # the trainer has them now
        return said

    def _shared(
        self, weights: "dict[str, np.ndarray]", trainer: "Trainer", tokenizer: "Tokenizer"
    ) -> "tuple[dict[str, np.ndarray], str]":
        stored = self.source.tokenizer()
        pairs = shared_tokens(
            [] if stored is None else stored.token_texts(), tokenizer.token_texts()
        )
        if not pairs:
            raise MismatchError(
                "The two vocabularies have no token in common.",
                where=self._folder,
                remedy="Leave out --init-from, or prepare the text with similar tokens.",
            )
        initial = {variable.path: variable.numpy() for variable in trainer.model.weights}
        configs = self.source.experiment.model, trainer.model.config
        line = f"{len(pairs):,} of {tokenizer.vocabulary_size:,} tokens are in both vocabularies."
        return rows_of_shared_tokens(weights, initial, *configs, pairs), line


def initial_weights(
    arguments: argparse.Namespace,
    workdir: Workdir,
    experiment: ExperimentConfig,
    data: dict[str, Any] | None = None,
) -> InitialWeights | None:
    """Returns the weights that a run begins from or was begun with; `None` for random weights.

    A run that was begun needs no `--init-from`, and its source only until its first checkpoint.
    """
    if arguments.init_from is None:
        for name in _OPTIONS:
            if getattr(arguments, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise UsageError("This goes with --init-from.", where=option)
    if workdir.has_run():
        start = workdir.describe().start
        if arguments.init_from is not None:
            _require_same_start(start, arguments)
        return None if start is None else InitialWeights.of_start(start)
    if arguments.init_from is None:
        if experiment.training.adapter_rank is not None:
            raise UsageError(
                "Adapters are for the weights of a trained model.",
                where=f"training.adapter_rank={experiment.training.adapter_rank}",
                remedy="Name its folder with --init-from.",
            )
        return None
    vocabulary = arguments.init_vocabulary or VOCABULARIES[0]
    found = InitialWeights(arguments.init_from, arguments.init_step, vocabulary)
    if data is not None:
        found.require_vocabulary(data)
    found.require_fit(experiment)
    return found


def _require_same_start(start: dict[str, Any] | None, arguments: argparse.Namespace) -> None:
    asked: dict[str, Any] = {
        "source": lasting_path(arguments.init_from),
        "vocabulary": arguments.init_vocabulary or VOCABULARIES[0],
    }
    if isinstance(arguments.init_step, int):
        asked["step"] = arguments.init_step
    for name, value in asked.items():
        if start is None or start[name] != value:
            stored = "initial weights" if start is None else f"{name} {start[name]}"
            raise MismatchError(
                f"Another run was begun here: it began from {stored}, not from {name} {value}.",
                where=arguments.workdir,
                remedy=_ANOTHER,
            )


def describe_start(start: dict[str, Any]) -> str:
    """Describes the weights that a run began from in a few words."""
    step = "" if start["step"] is None else f", step {start['step']:,}"
    rows = ", rows of shared tokens" if start["vocabulary"] == "shared" else ""
    return f"{start['kind']} {start['source']}{step}{rows}, SHA-256 {start['sha256'][:12]}"
