"""Examples of a task, as a training run reads and evaluates them."""

from collections.abc import Callable, Iterable

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.errors import MismatchError
from txl_tf.evaluation.result import TaskResult
from txl_tf.evaluation.task_evaluator import TaskEvaluator
from txl_tf.tasks.encoding import encode_examples, fingerprint_of
from txl_tf.tasks.examples import TaskData
from txl_tf.training.objectives.example_reader import ExamplePlan, ExampleReader
from txl_tf.training.objectives.task_objective import TaskObjective

from .run_data import RunData


class FineTuningData(RunData):
    """Examples of a task with a split `train`.

    Examples that cannot be encoded are a DataDamagedError; another vocabulary or label is a
    MismatchError. There must be an example to train on.
    """

    folder = None
    language_text = None  # a task has no text that a language model could continue
    bytes_per_token = None  # the loss of a task is not a loss per token
    objective_class = TaskObjective
    create_evaluator = TaskEvaluator

    def __init__(self, data: TaskData, tokenizer: Tokenizer, experiment: ExperimentConfig) -> None:
        assert experiment.task is not None
        size, num_ids = experiment.model.vocabulary_size, tokenizer.vocabulary_size
        if num_ids != size:
            raise MismatchError(
                f"The tokenizer ({tokenizer.kind}) has {num_ids:,} token ids, the model {size:,}.",
                where="--vocabulary",
                remedy="Name the data set that the model was trained on, or for a new model "
                f"--set model.vocabulary_size={num_ids}.",
            )
        self.tokenizer = tokenizer
        self._encoded = {
            name: encode_examples(experiment.task, tokenizer, data.splits[name])
            for name in ("train", "valid")
            if name in data.splits
        }
        self.has_valid = "valid" in self._encoded
        self._metrics = list(dict.fromkeys([experiment.task.metric, *data.metrics]))
        self.identity = {
            "fingerprint": fingerprint_of(self._encoded.values()),
            "corpus": "own",
            "tokenizer": tokenizer.kind,
            "tokenizer_sha256": tokenizer.fingerprint,
            "vocabulary_size": num_ids,
        }
        self.plan = ExamplePlan(
            num_examples=len(data.splits["train"]),
            num_rows=experiment.training.global_batch_size,
            seed=experiment.training.seed,
            fingerprint=self._encoded["train"].fingerprint,
        )
        length = experiment.model.segment_length
        self.reader = ExampleReader(self._encoded["train"], self.plan, length)
        self.count_tokens = self.reader.count_tokens

    def describe_plan(self) -> tuple[str, str]:
        """Describes a step and the examples of the run in a few words each."""
        tokens = self._encoded["train"].num_tokens
        rows, count = self.plan.num_rows, self.plan.num_examples
        longest = int(tokens.max())
        return (
            f"{rows:,} examples of {tokens.mean():,.0f} tokens, {longest:,} at most",
            f"passes over {count:,} examples",
        )

    def describe_loss(self, loss: float) -> str:
        """Returns nothing besides the loss itself."""
        return ""

    def describe_short(self, result: TaskResult) -> str:
        """Formats the figure of the task's metric for the line of progress."""
        name, value = next(iter(result.figures.items()))
        return f"{name} {value:.4f}"

    def describe_result(self, result: TaskResult, is_last: bool) -> str:
        return str(result)

    def evaluate(
        self,
        evaluator: TaskEvaluator,
        step: int,
        track: Callable[..., Iterable],
        max_tokens: int | None = None,
    ) -> TaskResult:
        """Evaluates the split `valid`; it is always read as a whole."""
        examples = self._encoded["valid"]
        return evaluator.evaluate(examples, self._metrics, split="valid", step=step, track=track)
