"""Source of a model: a run, a checkpoint, a converted model or an export."""

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Literal

from txl_tf.causal_lm.exported_model import (
    exported_tokenizer,
    exported_version,
    load_exported,
    read_export_card,
)
from txl_tf.causal_lm.model_folder import run_tokenizer
from txl_tf.config.experiment import (
    EvaluationConfig,
    ExperimentConfig,
    OptimizerConfig,
    TrainingConfig,
)
from txl_tf.config.model import ModelConfig
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.data.vocabulary_folder import read_tokenizer
from txl_tf.errors import InputMissingError
from txl_tf.run_folder import (
    RunDescription,
    StepChoice,
    build_model,
    describe,
    kind,
    locate,
    read_weights,
    require_no_step,
    run_folder_error,
)

if TYPE_CHECKING:
    import numpy as np

    from txl_tf.models.language_model import LanguageModel

SourceKind = Literal["run", "checkpoint", "converted", "export"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Model with its settings, from a folder of any kind.

    `kind` is `"run"`, `"checkpoint"`, `"converted"` or `"export"`. A checkpoint within a run is
    that run at its step; `"checkpoint"` is a copy. `experiment` has defaults for everything but
    the model of a converted folder, and the model and evaluation of an export. `stored_as` is the
    type of the stored weights: `"float32"`, and for an export also `"bfloat16"` or `"int8"`.
    """

    kind: SourceKind
    folder: str
    step: StepChoice
    experiment: ExperimentConfig
    data: dict[str, Any] | None
    stored_as: str = "float32"

    @property
    def is_run(self) -> bool:
        """True for the folder of a run, to which figures can be added."""
        return self.kind == "run"

    def read_weights(self) -> "tuple[int | None, dict[str, np.ndarray]]":
        """Reads the weights by path, after verifying them, and their step if it is known.

        An export with weights in fewer bits gives the float32 numbers that it computes with. The
        step is `None` for a converted model, and for an export whose card has none. Errors are
        the same as in `load_model` and `load_exported`.
        """
        if self.kind == "export":
            model = load_exported(self.folder)
            arrays = {variable.path: variable.numpy() for variable in model.weights}
            return read_export_card(self.folder).step, arrays
        step, weights = read_weights(self.folder, self.step)
        return None if self.data is None else step, weights

    def load_model(self) -> "LanguageModel":
        """Builds the model in float32 with its weights; errors of `read_weights`."""
        return self.load_step()[1]

    def load_step(self) -> "tuple[int | None, LanguageModel]":
        """Returns the step of the weights, see `read_weights`, and the loaded model."""
        if self.kind == "export":
            return read_export_card(self.folder).step, load_exported(self.folder)
        step, weights = self.read_weights()
        return step, build_model(self.experiment.model, weights)

    def tokenizer(self) -> Tokenizer | None:
        """Reads the tokenizer; `None` for a model without a vocabulary."""
        if self.kind == "export":
            return exported_tokenizer(self.folder)
        if self.data is None:
            return read_tokenizer(self.folder)
        return run_tokenizer(self.folder, self.data)

    def tokenizer_identity(self) -> dict[str, Any] | None:
        """Returns `tokenizer` and `tokenizer_sha256`, see `data_identity`; `None` if unknown."""
        if self.data is not None:
            return self.data
        tokenizer = self.tokenizer()
        if tokenizer is None:
            return None
        return {"tokenizer": tokenizer.kind, "tokenizer_sha256": tokenizer.fingerprint}


def open_model(folder: str | os.PathLike[str], step: StepChoice = None) -> ModelSource:
    """Finds the model of a folder and reads its settings, without TensorFlow.

    `read_weights` finds out if the step exists. Raises InputMissingError if there is no model,
    UsageError for a step where there is no choice, and DataDamagedError for invalid settings.
    """
    place, step = locate(os.fspath(folder), step)
    found = kind(place)
    described: RunDescription | ModelConfig
    evaluation, stored_as = EvaluationConfig(), "float32"
    if found is None:
        place = _version(place)
        require_no_step(step, "An export has no steps.")
        described, stored_as, evaluation, _ = read_export_card(place)
    else:
        if found == "converted":
            require_no_step(step)
        described = describe(place)
    source_kind: SourceKind = found or "export"
    if isinstance(described, RunDescription):
        experiment, data = described.experiment, described.data
    else:
        experiment, data = _untrained(described, evaluation), None
    return ModelSource(
        kind=source_kind,
        folder=place,
        step=step,
        experiment=experiment,
        data=data,
        stored_as=stored_as,
    )


def _version(folder: str) -> str:
    try:
        version = exported_version(folder)
    except NotADirectoryError:
        version = None
    except OSError as error:
        raise run_folder_error(folder, "read", error) from error
    if version is None:
        raise InputMissingError(
            "There is no model in this folder.",
            where=folder,
            remedy="Name the folder of a run, a checkpoint, a converted model or an export.",
        )
    return version


def _untrained(model: ModelConfig, evaluation: EvaluationConfig) -> ExperimentConfig:
    """Returns an experiment for a model with unknown training."""
    return ExperimentConfig(
        model=model,
        training=TrainingConfig(global_batch_size=1, num_steps=1),
        optimizer=OptimizerConfig(warmup_steps=0),
        evaluation=evaluation,
    )
