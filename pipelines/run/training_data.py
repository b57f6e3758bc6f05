"""Data of a training run: the tokens of each step, and the evaluated split."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig, RecurrentConfig
from txl_tf.data.prepared_dataset import PreparedDataset, dataset_tokenizer
from txl_tf.data.segment_plan import SegmentPlan
from txl_tf.data.training_segments import TrainingSegments
from txl_tf.errors import DataDamagedError
from txl_tf.evaluation.evaluator import Evaluator, Track, create_evaluator
from txl_tf.evaluation.result import EvaluationResult, bits, perplexity
from txl_tf.evaluation.scores import evaluate_split
from txl_tf.model_folder import check_dataset, data_identity
from txl_tf.models.sizes import reading_flops_per_token
from txl_tf.storage.files import is_remote
from txl_tf.training.objectives.text_objective import TextObjective

from .run_data import RunData

# Share of training's tokens that evaluations before the last step may read. Reading takes a third
# of training's operations: the rest allows for a slower precision and fewer rows.
_EVALUATED_SHARE = 0.1
# The loss of fewer tokens is too noisy to compare steps.
_FEWEST_EVALUATED_TOKENS = 4096
# Part of the message of `assert_cardinality`.
_TOO_FEW = "was expected to contain"


class TrainingData(RunData):
    """Data set with a split `train`, cut into the rows of a run; a local one is verified.

    A damaged file, or too little text to train on, is a DataDamagedError; another vocabulary is a
    MismatchError.
    """

    objective_class = TextObjective
    create_evaluator = staticmethod(create_evaluator)
    count_tokens = None  # all rows read a segment in each step
    folder: str
    bytes_per_token: float
    language_text: PreparedDataset

    def __init__(self, folder: str, experiment: ExperimentConfig) -> None:
        # A remote data set is not read as a whole before the first step. In training each record is
        # compared with its own checksum when it is read. An evaluation compares each file with the
        # manifest before its first read, and `txl verify` compares all files.
        dataset = PreparedDataset.open(folder, verify=not is_remote(folder))
        manifest = dataset.manifest
        self.folder = dataset.folder
        self.manifest = manifest
        if "train" not in manifest.split_names:
            raise DataDamagedError(
                "The data set has no split `train`.",
                where=folder,
                remedy=f"Prepare text for it; the splits are: {', '.join(manifest.split_names)}.",
            )
        check_dataset(manifest, folder, experiment)
        train = manifest.split("train")
        self.plan = SegmentPlan(
            num_tokens=train.tokens,
            num_rows=experiment.training.global_batch_size,
            segment_length=experiment.model.segment_length,
            seed=experiment.training.seed,
            fingerprint=manifest.fingerprint,
            rotate=experiment.training.rotate_epochs,
        )
        masks_documents = experiment.training.document_boundaries == "mask"
        self.reader = TrainingSegments(dataset, "train", self.plan, masks_documents)
        self.identity = data_identity(manifest)
        self.has_valid = "valid" in manifest.split_names
        self.bytes_per_token = train.bytes / train.tokens
        self.language_text = dataset
        self.tokenizer = dataset_tokenizer(dataset.folder, manifest)

    def describe_plan(self) -> tuple[str, str]:
        """Describes a step and the tokens of the run in a few words each."""
        rows, length = self.plan.num_rows, self.plan.segment_length
        return (
            f"{rows:,} rows x {length:,} tokens = {rows * length:,} tokens",
            f"passes over {self.plan.num_tokens:,} tokens",
        )

    def describe_loss(self, nats_per_token: float, bytes_per_token: float | None = None) -> str:
        """Formats the perplexity of word tokens, or bits per byte of other tokens."""
        has_words = self.manifest.tokenizer_kind == "words"
        return loss_figure(nats_per_token, bytes_per_token or self.bytes_per_token, has_words)

    def describe_short(self, result: EvaluationResult) -> str:
        """Formats the figure of `describe_loss` without its unit, for the line of progress."""
        text = self.describe_loss(result.nats_per_token, result.num_bytes / result.num_tokens)
        return text.replace("perplexity ", "").replace(" bits/byte", "")

    def describe_result(self, result: EvaluationResult, is_last: bool) -> str:
        """Formats an evaluation in a line, or the last one as a table."""
        if is_last:
            return str(result)
        in_bytes = "" if result.bits_per_byte is None else f"{result.bits_per_byte:.4f} bits/byte, "
        losses = f"{in_bytes}perplexity {result.perplexity:,.2f}"
        return f"{result.split} at step {result.step:,}: {losses}"

    def evaluate(
        self, evaluator: Evaluator, step: int, track: Track, max_tokens: int | None = None
    ) -> EvaluationResult:
        return evaluate_split(
            evaluator, self.language_text, "valid", step=step, track=track, max_tokens=max_tokens
        )

    @contextlib.contextmanager
    def errors_explained(self) -> Iterator[None]:
        """Turns TensorFlow's reading errors into errors that name the file."""
        try:
            yield
        except (tf.errors.DataLossError, tf.errors.FailedPreconditionError) as error:
            # Fewer segments than planned; losing a host raises this error type too.
            is_data_loss = isinstance(error, tf.errors.DataLossError)
            if not is_data_loss and _TOO_FEW not in str(error):
                raise
            raise self.reader.explain_data_loss(error) from error


def loss_figure(nats_per_token: float, bytes_per_token: float, has_words: bool) -> str:
    """Formats the perplexity of words and of ids, or bits per byte of other tokens."""
    if has_words or not bytes_per_token:
        value = perplexity(nats_per_token)
        return f"perplexity {value:,.{0 if value >= 1000 else 2}f}"
    return f"{bits(nats_per_token) / bytes_per_token:.4f} bits/byte"


def tokens_before_the_end(experiment: ExperimentConfig, num_steps: int) -> int | None:
    """Returns the token limit of evaluations before the last step; `None` for no limit.

    The default is a tenth of the tokens that the run trains on between two evaluations, or fewer if
    the lengths of evaluations cost more than those of training. The limit depends on no measured
    time, and `num_steps` is the number that the run was begun with, so that resumed and extended
    runs read the same text.
    """
    training, evaluation = experiment.training, experiment.evaluation
    if isinstance(training.evaluate_tokens, int):
        return training.evaluate_tokens
    decides = training.stop_after_evaluations is not None
    if decides or training.evaluate_tokens == "all" or experiment.task is not None:
        return None
    period = training.replace(num_steps=num_steps).evaluation_period
    num_trained = period * training.global_batch_size * experiment.model.segment_length
    num_tokens = num_trained * _EVALUATED_SHARE / _relative_cost(experiment.model, evaluation)
    return max(int(num_tokens), _FEWEST_EVALUATED_TOKENS)


def _relative_cost(model: ModelConfig | RecurrentConfig, evaluation: EvaluationConfig) -> float:
    """Returns the operations to score a token relative to training's lengths; at least 1."""
    segment_length = evaluation.segment_length or model.segment_length
    cost = 1.0
    if isinstance(model, ModelConfig):
        memory_length = evaluation.memory_length
        memory_length = model.memory_length if memory_length is None else memory_length
        changed_model = model.replace(segment_length=segment_length, memory_length=memory_length)
        cost = reading_flops_per_token(changed_model) / reading_flops_per_token(model)
    if evaluation.dynamic_learning_rate is not None:
        cost *= 3.0  # a backward pass
    return max(cost, 1.0)
