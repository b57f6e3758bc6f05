"""Fine-tuned model that answers texts."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from txl_tf.config.experiment import EvaluatedModel
from txl_tf.config.task import TaskConfig
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.errors import InputMissingError
from txl_tf.evaluation.task_evaluator import TaskEvaluator
from txl_tf.model_folder import StepChoice, open_model
from txl_tf.tasks.answers import answers_of
from txl_tf.tasks.encoding import encode_examples
from txl_tf.tasks.examples import Example


class TextTask:
    """Fine-tuned model with a task's head, which takes text and returns answers.

    Args:
        config: `EvaluatedModel` with a task.
        tokenizer: `Tokenizer` of the model.
        weights: dict of variable path to array, including the head's.
        step: int. Training steps of the weights.

    Attributes:
        model: `TransformerXLWithHead`.
        task: `TaskConfig`.
        tokenizer: the given tokenizer.
        step: int. The given step.

    Raises:
        MismatchError: If the weights do not fit the model.

    Example:
    ```python
    task = txl_tf.load_task("runs/reviews")
    print(task.predict(["A fine book.", "Too long."]))
    ```
    """

    def __init__(
        self,
        config: EvaluatedModel,
        tokenizer: Tokenizer,
        weights: dict[str, np.ndarray],
        step: int = 0,
    ) -> None:
        assert config.task is not None
        self.task: TaskConfig = config.task
        self.tokenizer = tokenizer
        self.step = step
        # Predictions use float32, even after training in lower precision.
        evaluation = config.evaluation.replace(dtype_policy="float32")
        self._evaluator = TaskEvaluator(config.replace(evaluation=evaluation))
        self._evaluator.load_arrays(weights)
        self.model = self._evaluator.model

    def predict(self, texts: Sequence[str | tuple[str, ...]]) -> list[Any]:
        """Answers texts.

        Args:
            texts: sequence of str, or of tuples for pairs of texts.

        Returns:
            List with the class or the number of each text.

        Raises:
            DataDamagedError: If a text cannot be encoded or has no token.
        """
        rows = [(each,) if isinstance(each, str) else tuple(each) for each in texts]
        predictions, _ = self.answer(
            [
                Example(name=str(number), where=f"texts[{number}]", texts=row)
                for number, row in enumerate(rows)
            ]
        )
        labels = self.task.labels
        return predictions if labels is None else [labels[number] for number in predictions]

    def answer(self, examples: Sequence[Example]) -> tuple[list[Any], list[Any]]:
        """Returns the predictions of examples for `compute_metrics`, and scores, see `answers_of`.

        Args:
            examples: sequence of `Example`.
        """
        if not examples:
            return [], []
        encoded_examples = encode_examples(self.task, self.tokenizer, examples)
        return answers_of(self.task, self._evaluator.outputs(encoded_examples))


def load_task(folder: str | os.PathLike[str], step: StepChoice = None) -> TextTask:
    """Verifies and loads a model that `txl finetune` trained.

    Args:
        folder: path of a run or a checkpoint.
        step: as for `txl_tf.load_model`.

    Raises:
        InputMissingError: If the folder has no model with the head of a task.
        JobError: As `load_model`.
    """
    source = open_model(folder, step)
    tokenizer = source.tokenizer()
    if source.kind == "export" or source.description.task is None or tokenizer is None:
        raise InputMissingError(
            "The folder does not hold a model that `txl finetune` trained for a task.",
            where=source.folder,
            remedy="Name the --workdir of a `txl finetune` run; `load_task` reads no exports.",
        )
    weights_step, weights = source.read_weights(with_head=True)
    return TextTask(source.description, tokenizer, weights, weights_step)
