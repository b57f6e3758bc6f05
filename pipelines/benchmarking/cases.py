"""Cases of the suites: what is measured, at which shapes, and the arithmetic of a token.

Shape letters used in this module: B rows, T segment length, M memory length, D hidden width.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from txl_tf.config.experiment import (
    EvaluationConfig,
    ExperimentConfig,
    TrainingConfig,
)
from txl_tf.config.model import ModelConfig
from txl_tf.errors import UsageError
from txl_tf.models.sizes import reading_flops_per_token, training_flops_per_token

from ..arguments import load_experiment, override
from ..configs import quickstart
from ..memory_needs import (
    reading_needs,
    require_evaluation_memory,
    require_memory_of,
    require_training_memory,
)

SUITES = ("train", "evaluate", "generate", "prepare", "read", "compile")
"""What can be measured."""
_EVALUATE_MEMORY = (1600, 3800)
_GENERATE_ROWS = (1, 8)
_READ_ROWS, _READ_SEGMENT = 64, 512
_TOKENIZERS = ("bytes", "words")
_READ_BY_PEERS = (
    *("vocabulary_size", "num_layers", "hidden_dim", "num_heads", "head_dim"),
    *("intermediate_dim", "segment_length", "memory_length", "dropout", "attention_dropout"),
)
# Settings that change numbers, and hardly the work.
_NO_WORK = dict.fromkeys(
    (
        *("embedding_dim", "layer_norm_epsilon", "initializer", "initializer_stddev"),
        *("initializer_range", "projection_stddev", "share_attention_biases"),
        *("clamp_length", "same_length", "same_length_keys"),
    )
)
# A run of any length; loops of it are measured.
_NUM_STEPS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the measurement.

    Attributes:
        suite: str. One of `SUITES`.
        shape: str. What is measured, in words.
        request: dict. For the process that does it, see `own_work`.
        flops_per_token: optional int. Arithmetic of the model for a token.
        peer_request: optional dict. For a peer that does the same.
    """

    suite: str
    shape: str
    request: dict[str, Any]
    flops_per_token: int | None = None
    peer_request: dict[str, Any] | None = None


def cases_of(suite: str, arguments: argparse.Namespace) -> list[Case]:
    """Lists the cases of a suite.

    Args:
        suite: str. One of `SUITES`.
        arguments: the arguments of `txl benchmark`.

    Raises:
        UsageError: If settings do not go together, or the machine's memory cannot
            hold a case.
    """
    kinds: dict[str, Callable[[argparse.Namespace], Iterator[Case]]] = {
        "train": _training,
        "evaluate": _evaluation,
        "generate": _generation,
        "prepare": _preparation,
        "read": _reading,
        "compile": _starting,
    }
    # Settings may make two of the usual shapes the same.
    found: list[Case] = []
    for case in kinds[suite](arguments):
        if case not in found:
            found.append(case)
    return found


def training_experiment() -> ExperimentConfig:
    """Returns the settings of the suite `train`; what they leave open is as in `txl train`."""
    return ExperimentConfig(
        model=_model(num_layers=6, num_heads=4, memory_length=128),
        training=TrainingConfig(global_batch_size=8, num_steps=_NUM_STEPS),
    )


def reading_experiment(memory_length: int) -> ExperimentConfig:
    """Returns the settings of the suites `evaluate` and `generate`."""
    return ExperimentConfig(
        model=_model(num_layers=12, num_heads=8, memory_length=memory_length),
        training=TrainingConfig(global_batch_size=1, num_steps=_NUM_STEPS),
        evaluation=EvaluationConfig(batch_size=1),
    )


def _model(num_layers: int, num_heads: int, memory_length: int) -> ModelConfig:
    hidden_dim = 64 * num_heads
    return ModelConfig(
        vocabulary_size=256,
        num_layers=num_layers,
        hidden_dim=hidden_dim,
        num_heads=num_heads,
        head_dim=64,
        intermediate_dim=4 * hidden_dim,
        segment_length=128,
        memory_length=memory_length,
    )


def _experiments(
    arguments: argparse.Namespace, defaults: Sequence[ExperimentConfig]
) -> list[ExperimentConfig]:
    """Returns the user's experiment, or the suite's own ones with what `--set` changes."""
    if arguments.config is not None:
        return [load_experiment(arguments.config, arguments.overrides)]
    return [override(each, arguments.overrides) for each in defaults]


def _training(arguments: argparse.Namespace) -> Iterator[Case]:
    for experiment in _experiments(arguments, [training_experiment()]):
        for segment in arguments.segment_lengths or [None]:
            # Without a length of its own, memory has that of the segment.
            for memory in arguments.memory_lengths or [segment]:
                for num_rows in arguments.rows or [None]:
                    changed = _with_lengths(experiment, segment, memory)
                    if num_rows is not None:
                        training = changed.training.replace(global_batch_size=num_rows)
                        changed = changed.replace(training=training)
                    yield _training_case(changed)


def _training_case(experiment: ExperimentConfig) -> Case:
    require_training_memory(experiment)
    num_rows = experiment.training.global_batch_size
    return _model_case("train", experiment, num_rows, training_flops_per_token)


def _with_lengths(
    experiment: ExperimentConfig, segment: int | None, memory: int | None
) -> ExperimentConfig:
    changes = {"segment_length": segment, "memory_length": memory}
    given = {name: value for name, value in changes.items() if value is not None}
    if "memory_length" in given and not isinstance(experiment.model, ModelConfig):
        raise UsageError(
            "A recurrent model has no memory length.",
            where="--memory-lengths" if segment is None else "--segment-lengths",
            remedy="Leave it out.",
        )
    try:
        return experiment.replace(model=experiment.model.replace(**given))
    except ValueError as error:
        raise UsageError(f"{error}", where="--segment-lengths, --memory-lengths") from error


def _evaluation(arguments: argparse.Namespace) -> Iterator[Case]:
    for experiment in _experiments(arguments, list(map(reading_experiment, _EVALUATE_MEMORY))):
        evaluation = experiment.evaluation
        own_lengths = evaluation.segment_length, evaluation.memory_length
        for segment, memory, num_rows in itertools.product(
            arguments.segment_lengths or [own_lengths[0]],
            arguments.memory_lengths or [own_lengths[1]],
            arguments.rows or [evaluation.batch_size],
        ):
            changed = _with_lengths(experiment, segment, memory)
            lengths = {"segment_length": None, "memory_length": None, "batch_size": num_rows}
            changed = changed.replace(evaluation=evaluation.replace(**lengths))
            yield _evaluation_case(changed)


def _evaluation_case(experiment: ExperimentConfig) -> Case:
    model, num_rows = experiment.model, experiment.evaluation.batch_size
    require_evaluation_memory(model, experiment.evaluation)
    return _model_case("evaluate", experiment, num_rows, reading_flops_per_token)


def _model_case(
    work: str,
    experiment: ExperimentConfig,
    num_rows: int,
    flops_per_token: Callable[[ModelConfig], int],
) -> Case:
    """The case of a job that reads tokens with an experiment's model."""
    model = experiment.model
    return Case(
        work,
        _shape(experiment, num_rows, experiment.training.dtype_policy),
        {"work": work, "experiment": experiment.to_dict()},
        flops_per_token(model) if isinstance(model, ModelConfig) else None,
        _peer_request(work, experiment, num_rows),
    )


def _generation(arguments: argparse.Namespace) -> Iterator[Case]:
    default_rows = _GENERATE_ROWS if arguments.config is None else (1,)
    experiments = _experiments(arguments, list(map(reading_experiment, _EVALUATE_MEMORY)))
    for num_rows, experiment, memory in itertools.product(
        arguments.rows or default_rows, experiments, arguments.memory_lengths or [None]
    ):
        # A token at a time.
        changed = _with_lengths(experiment, None, memory)
        needs = reading_needs(
            changed.model,
            num_rows,
            1,
            getattr(changed.model, "memory_length", 0),
            f"--rows {num_rows}, --memory-lengths {memory}",
        )
        require_memory_of(needs, "Writing")
        yield _generation_case(changed, num_rows)


def _generation_case(experiment: ExperimentConfig, num_rows: int) -> Case:
    model, flops = experiment.model, None
    if isinstance(model, ModelConfig):
        flops = reading_flops_per_token(model.replace(segment_length=1))
    return Case(
        "generate",
        _shape(experiment, num_rows, "float32", segment_length=1),
        {"work": "generate", "experiment": experiment.to_dict(), "num_rows": num_rows},
        flops,
        _peer_request("generate", experiment, num_rows),
    )


def _shape(
    experiment: ExperimentConfig, num_rows: int, policy: str, segment_length: int | None = None
) -> str:
    model = experiment.model
    lengths = f"T {segment_length or model.segment_length:,}"
    if isinstance(model, ModelConfig):
        lengths += f", M {model.effective_memory_length:,}"
    return f"{model.num_layers} x {model.hidden_dim}, {lengths}, B {num_rows:,}, {policy}"


def _peer_request(work: str, experiment: ExperimentConfig, num_rows: int) -> dict[str, Any] | None:
    """Returns the sizes of a case, where they are all that there is to say of its model."""
    model, optimizer = experiment.model, experiment.optimizer
    if not isinstance(model, ModelConfig):
        return None
    plain = ModelConfig(**{field: getattr(model, field) for field in _READ_BY_PEERS})
    needs = [{**each.to_dict(), **_NO_WORK} for each in (model, plain)]
    is_plain = needs[0] == needs[1] and model.embedding_dim in (None, model.hidden_dim)
    if not is_plain or (work == "train" and optimizer.name != "adam"):
        return None
    return {
        "work": work,
        "num_rows": num_rows,
        **{field: getattr(model, field) for field in _READ_BY_PEERS},
        "learning_rate": optimizer.learning_rate,
        "clip_norm": optimizer.clip_norm,
    }


def _preparation(arguments: argparse.Namespace) -> Iterator[Case]:
    text = arguments.text or "generated words"
    for kind in arguments.tokenizer or _TOKENIZERS:
        request = {"work": "prepare", "text": arguments.text, "tokenizer": kind}
        yield Case("prepare", f"{text} as {kind}", request)


def _reading(arguments: argparse.Namespace) -> Iterator[Case]:
    for num_rows, segment, with_starts in itertools.product(
        arguments.rows or [_READ_ROWS],
        arguments.segment_lengths or [_READ_SEGMENT],
        (False, True),
    ):
        request = {
            "work": "read",
            "data": arguments.data,
            "num_rows": num_rows,
            "segment_length": segment,
            "with_document_starts": with_starts,
        }
        starts = ", document starts" if with_starts else ""
        yield Case("read", f"T {segment:,}, B {num_rows:,}{starts}", request)


def _starting(arguments: argparse.Namespace) -> Iterator[Case]:
    yield Case("compile", "txl --help", {"work": "help"})
    yield Case("compile", "import of the model", {"work": "import"})
    experiment = override(quickstart(), arguments.overrides)
    if arguments.config is not None:
        experiment = load_experiment(arguments.config, arguments.overrides)
    require_training_memory(experiment)
    name = arguments.config or "quickstart"
    request = {"work": "first_step", "experiment": experiment.to_dict()}
    yield Case("compile", f"first training step of {name}", request)
