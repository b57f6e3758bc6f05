"""Weights and settings that a run begins with from the folder of another model: `--init-from`."""

import argparse
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from txl_tf.config.differences import describe_differences
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import AnyModelConfig, ModelConfig
from txl_tf.errors import MismatchError, UsageError
from txl_tf.model_folder import (
    ModelFolder,
    RunStart,
    StepChoice,
    Workdir,
    lasting_path,
    open_model,
    required_tokenizer,
)

from ..shell.arguments import add_step_argument

if TYPE_CHECKING:
    from txl_tf.training.trainer import Trainer

    from .run_data import RunData

# These settings change neither the names nor the shapes of the weights.
_FIELDS_WITHOUT_WEIGHTS = (
    "segment_length",
    "memory_length",
    "recurrence",
    "clamp_length",
    "same_length",
    "same_length_keys",
    "dropout",
    "variational_dropout",
    "attention_dropout",
    "initializer",
    "initializer_stddev",
    "initializer_range",
    "projection_stddev",
)
# These weights have a row for every token, in one array or in one array per cluster.
_ROWS = re.compile(r"(embedding/table|softmax/table|softmax/bias)(?:_(\d+))?")


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
        choices=("same", "shared"),
        default="same",
        help="same: refuse another vocabulary; shared: take the weights of the tokens that are in "
        "both vocabularies (default: same)",
    )
    group.add_argument(
        "--freeze",
        metavar="PART",
        nargs="+",
        help="not to train: embedding, softmax, layers, layers:3 or layers:0-3 (first is 0)",
    )


class InitialWeights:
    """Weights of another model that a run begins from, opened and read on first use.

    `vocabulary` is "same" or "shared".
    """

    def __init__(self, folder: str, step: StepChoice, vocabulary: Any) -> None:
        self._folder = lasting_path(folder)
        self._step = step
        self._vocabulary = vocabulary

    @functools.cached_property
    def source(self) -> ModelFolder:
        """Folder of the other model."""
        return open_model(self._folder, self._step)

    @functools.cached_property
    def _weights(self) -> tuple[int, dict[str, np.ndarray]]:
        return self.source.read_weights()

    def require_vocabulary(self, data: dict[str, Any]) -> None:
        """Raises MismatchError if the weights belong to another vocabulary."""
        description = self.source.description
        if self._vocabulary == "shared":
            required_tokenizer(self.source, self._folder)
        elif description.tokenizer_sha256 not in (None, data["tokenizer_sha256"]):
            raise MismatchError(
                f"The vocabulary of the initial weights ({description.tokenizer}) is not the "
                f"vocabulary of the data set ({data['tokenizer']}).",
                where=self._folder,
                remedy="Prepare the text with --vocabulary and this folder, or begin from the "
                "weights of the tokens that are in both with --init-vocabulary shared.",
            )

    def start_on(self, data: dict[str, Any]) -> RunStart:
        """Describes the weights for `run.json`; MismatchError if `data` has another vocabulary."""
        self.require_vocabulary(data)
        kind, step = self.source.kind, self._weights[0]
        return RunStart(source=self._folder, kind=kind, step=step, vocabulary=self._vocabulary)

    def assign_to(self, trainer: "Trainer", data: "RunData", say: Callable[[str], None]) -> None:
        """Assigns the weights to a trainer at step 0; `say` prints how many tokens are shared."""
        weights = self._weights[1]
        if self._vocabulary == "shared":
            texts = required_tokenizer(self.source, self._folder).token_texts()
            ids = {text: index for index, text in enumerate(texts)}
            own_texts = enumerate(data.tokenizer.token_texts())
            pairs = [(ids[text], index) for index, text in own_texts if text in ids]
            if not pairs:
                raise MismatchError(
                    "The initial weights and the data set have no token in common.",
                    where=self._folder,
                    remedy="Leave out --init-from, or prepare the text with its tokenizer.",
                )
            initial = {variable.path: variable.numpy() for variable in trainer.model.weights}
            configs = self.source.description.model, trainer.model.config
            weights = rows_of_shared_tokens(weights, initial, *configs, pairs)
            size = data.tokenizer.vocabulary_size
            say(f"{len(pairs):,} of {size:,} tokens are in the vocabulary of --init-from too.")
        trainer.state.begin_from(weights)
        del self._weights  # the trainer has them now


def initial_weights(
    arguments: argparse.Namespace,
    workdir: Workdir,
    experiment: ExperimentConfig,
    data: dict[str, Any] | None = None,
) -> InitialWeights | None:
    """Returns the weights that a run begins from or was begun with; `None` for random weights.

    To resume a run, `--init-from` may be left out. The run reads the other model only until its
    first checkpoint is written.
    """
    vocabulary = arguments.init_vocabulary
    if arguments.init_from is None and (arguments.init_step, vocabulary) != (None, "same"):
        raise UsageError(
            "--init-step and --init-vocabulary need --init-from.",
            where="--init-from",
            remedy="Add --init-from DIR.",
        )
    if workdir.has_run():
        start = workdir.describe().start
        if arguments.init_from is not None:
            _require_same_start(start, arguments)
        if start is None:
            return None
        step = start.step if start.kind == "run" else None  # others have no choice of steps
        return InitialWeights(start.source, step, start.vocabulary)
    if arguments.init_from is None:
        if experiment.training.adapter_rank is not None:
            raise UsageError(
                "Adapters need the weights of a trained model.",
                where=f"training.adapter_rank={experiment.training.adapter_rank}",
                remedy="Name a trained model with --init-from, or leave the setting out.",
            )
        return None
    initial = InitialWeights(arguments.init_from, arguments.init_step, vocabulary)
    if data is not None:
        initial.require_vocabulary(data)
    model = initial.source.description.model
    require_same_weights(model, experiment.model, arguments.init_from, vocabulary == "shared")
    return initial


def _require_same_start(start: RunStart | None, arguments: argparse.Namespace) -> None:
    options: dict[str, Any] = {
        "source": lasting_path(arguments.init_from),
        "vocabulary": arguments.init_vocabulary,
    }
    if isinstance(arguments.init_step, int):
        options["step"] = arguments.init_step
    run_options = {name: getattr(start, name, None) for name in options}
    if differences := describe_differences(run_options, options):
        raise MismatchError(
            f"The run in this folder began from other initial weights; {differences}",
            where=arguments.workdir,
            remedy="Give the arguments that the run began with, or choose a new --workdir.",
        )


def require_same_weights(
    stored: AnyModelConfig, config: AnyModelConfig, where: str, shares_vocabulary: bool = False
) -> None:
    """Raises MismatchError, with the differing settings, if weights do not fit a model.

    Lengths, clamp and dropout may differ. Settings that change the function of the weights, such
    as `pre_norm` and `layer_norm_epsilon`, may not, though their shapes would fit. With
    `shares_vocabulary` vocabularies and cluster bounds may differ, see `rows_of_shared_tokens`.
    """
    if type(stored) is type(config):
        values = [_deciding(each, shares_vocabulary) for each in (stored, config)]
    else:
        values = [{"model.kind": getattr(each, "kind", None)} for each in (stored, config)]
    if differences := describe_differences(*values):
        raise MismatchError(
            f"The initial weights are of another model; {differences}",
            where=where,
            remedy="Leave --config out, or the section `model` of its file, to take the model of "
            "the source; or give the stored values with --set model.FIELD=VALUE.",
        )


def _deciding(config: AnyModelConfig, shares_vocabulary: bool) -> dict[str, Any]:
    values = {
        name: each for name, each in config.to_dict().items() if name not in _FIELDS_WITHOUT_WEIGHTS
    }
    values["embedding_dim"] = values["embedding_dim"] or values["hidden_dim"]
    if isinstance(config, ModelConfig):
        # These two settings have no effect without cutoffs or a division factor.
        values["share_tail_projections"] = config.share_tail_projections and bool(config.cutoffs)
        values["project_same_dim"] = config.project_same_dim or config.division_factor == 1
    if shares_vocabulary:
        del values["vocabulary_size"]
        values["clusters"] = len(values.pop("cutoffs", ())) + 1
    return {f"model.{name}": value for name, value in values.items()}


def rows_of_shared_tokens(
    weights: Mapping[str, np.ndarray],
    initial: Mapping[str, np.ndarray],
    stored: AnyModelConfig,
    config: AnyModelConfig,
    pairs: Sequence[tuple[int, int]],
) -> dict[str, np.ndarray]:
    """Returns weights for another vocabulary; tokens that are not shared keep their initial rows.

    A token that changes its cluster of an adaptive embedding gets initial rows, because clusters
    have their own widths. `pairs` is not empty: each pair is a shared token's id in the source and
    its id in the new vocabulary.
    """
    arrays: dict[str, np.ndarray] = {}
    for path, array in initial.items():
        match = _ROWS.fullmatch(path)
        if match is None:
            arrays[path] = weights[path]
            continue
        rows, cluster = np.array(array), int(match[2] or 0)
        starts = [[(0, *getattr(each, "cutoffs", ()))[cluster]] for each in (stored, config)]
        before, after = np.array(pairs).T - starts
        is_here = (before >= 0) & (before < len(weights[path])) & (after >= 0) & (after < len(rows))
        rows[after[is_here]] = weights[path][before[is_here]]
        arrays[path] = rows
    return arrays
