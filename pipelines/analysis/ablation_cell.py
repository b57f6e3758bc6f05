"""One run of an ablation: a row with a seed."""

import dataclasses
from typing import Any, cast

from pipelines.analysis.ablation_row import AblationRow
from pipelines.analysis.attention_length import AttentionLength
from pipelines.analysis.study_evaluation import StudyEvaluation
from pipelines.workdir import identity
from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.config.model_config import ModelConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationCell:
    """What is trained, and how it is evaluated.

    Attributes:
        row: `AblationRow`.
        seed: int.
        experiment: `ExperimentConfig` of the run.
        evaluation: `StudyEvaluation`.
    """

    row: AblationRow
    seed: int
    experiment: ExperimentConfig
    evaluation: StudyEvaluation

    @property
    def name(self) -> str:
        """Name of the cell, and path of its folder in that of the study."""
        return f"{self.row.name}/seed-{self.seed}"

    def attention_lengths(self) -> list[AttentionLength]:
        """The lengths to evaluate at, that of training first.

        Returns:
            List of `AttentionLength`.
        """
        if cast(ModelConfig, self.experiment.model).recurrence:
            return self._memory_lengths()
        return self._window_lengths()

    def _memory_lengths(self) -> list[AttentionLength]:
        model = self.experiment.model
        own = AttentionLength(
            length=model.memory_length,
            segment_length=model.segment_length,
            memory_length=model.memory_length,
            same_length=model.same_length,
            stride=None,
            is_training_length=True,
        )
        others = [
            dataclasses.replace(
                own,
                length=length,
                memory_length=length,
                # Without a memory, it would leave every query alone with itself.
                same_length=self.evaluation.same_length and length > 0,
                is_training_length=False,
            )
            for length in sorted(set(self.evaluation.memory_lengths))
        ]
        return [own, *others]

    def _window_lengths(self) -> list[AttentionLength]:
        own_length = self.experiment.model.segment_length
        lengths = sorted(set(self.evaluation.window_lengths) - {own_length})
        return [
            AttentionLength(
                length=length,
                segment_length=length,
                memory_length=0,
                same_length=False,
                stride=min(self.evaluation.window_stride, own_length),
                is_training_length=length == own_length,
            )
            for length in [own_length, *lengths]
        ]

    def settings(self, data: dict[str, Any]) -> dict[str, Any]:
        """What decides every figure of the cell.

        Args:
            data: dict that `data_identity` returned.

        Returns:
            Dict of JSON values. Attention lengths are not among them: more of
            them can be measured later.
        """
        evaluation = self.evaluation
        return {
            **identity(self.experiment, data),
            "evaluation_split": evaluation.split,
            "evaluation_tokens": evaluation.num_tokens,
            "evaluation_rows": self.experiment.evaluation.batch_size,
        }
