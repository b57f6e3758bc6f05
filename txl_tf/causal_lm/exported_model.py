"""Model and tokenizer of an export, loaded from its weights and its card."""

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from txl_tf.config.experiment import EvaluationConfig
from txl_tf.config.model import ModelConfig
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.data.vocabulary_folder import read_tokenizer
from txl_tf.errors import DataDamagedError, MismatchError
from txl_tf.export.export_verification import (
    CARD_FILE,
    CHECKSUMS_FILE,
    EXTRA,
    GRAPH_FILE,
    verify_export,
)
from txl_tf.storage.files import first_line, list_folder, path_exists
from txl_tf.storage.untrusted_files import read_json_object

if TYPE_CHECKING:
    import keras

_NUMBERS = "weights/_numbers/{}/.ATTRIBUTES/VARIABLE_VALUE"
_SCALES = "weights/_scales/{}/.ATTRIBUTES/VARIABLE_VALUE"
_REMEDY = "Export the model again."


def exported_version(folder: str) -> str | None:
    """Returns the version that a folder is, or the newest one in it; `None` if there are none."""
    if _is_version(folder):
        return folder
    numbers = sorted((int(name) for name in list_folder(folder) if name.isdecimal()), reverse=True)
    paths = (os.path.join(folder, str(number)) for number in numbers)
    return next((path for path in paths if _is_version(path)), None)


def _is_version(folder: str) -> bool:
    return all(path_exists(os.path.join(folder, name)) for name in (CHECKSUMS_FILE, GRAPH_FILE))


class ExportCard(NamedTuple):
    """Entries of an export's card that determine its numbers."""

    model: ModelConfig
    stored_as: str
    """Type of the stored weights, such as `"int8"`."""
    evaluation: EvaluationConfig
    """Evaluation of the run; defaults if the card has none."""
    step: int | None
    """Training steps of the weights; `None` if the card has none."""


def read_export_card(version: str) -> ExportCard:
    """Reads the card of an exported version; DataDamagedError if it does not describe a model."""
    card = os.path.join(version, CARD_FILE)
    try:
        values = read_json_object(card, remedy=_REMEDY)
        serving = values.get("serving")
        weights = serving.get("weights") if isinstance(serving, dict) else None
        stored = weights.get("stored_as") if isinstance(weights, dict) else None
        step = values.get("step")
        return ExportCard(
            model=ModelConfig.from_dict(values["model"]),
            stored_as=str(stored or "float32"),
            evaluation=EvaluationConfig.from_dict(values.get("evaluation", {})),
            step=step if type(step) is int else None,
        )
    except (KeyError, OSError, ValueError) as error:
        raise DataDamagedError(
            f"The card does not tell the model: {first_line(error)}", where=card, remedy=_REMEDY
        ) from error


def exported_tokenizer(version: str) -> Tokenizer | None:
    """Reads the tokenizer of an exported version; `None` if it was exported without one."""
    return read_tokenizer(os.path.join(version, EXTRA))


def load_exported(version: str) -> "keras.Model":
    """Loads the model of an exported version, after verifying all of its files.

    Weights stored in fewer bits become the float32 numbers that the export computes with. Raises
    MismatchError if card and weights belong to different models.
    """
    import tensorflow as tf

    from txl_tf.models import create_model

    verify_export(version)
    model = create_model(read_export_card(version).model, dtype="float32")
    prefix = os.path.join(version, "variables", "variables")
    _assign(model, tf.train.load_checkpoint(prefix), prefix)
    return model


def _assign(model: "keras.Model", reader: Any, where: str) -> None:
    import numpy as np
    import tensorflow as tf

    shapes = reader.get_variable_to_shape_map()
    variables = model.weights
    if _NUMBERS.format(len(variables)) in shapes:
        raise _mismatch("The export has more weights than the model of its card.", where)
    for index, variable in enumerate(variables):
        name = _NUMBERS.format(index)
        if tuple(shapes.get(name, ())) != tuple(variable.shape):
            raise _mismatch(
                f"Weight {index} has shape {shapes.get(name)}; `{variable.path}` of the card's "
                f"model has {list(variable.shape)}.",
                where,
            )
        # NumPy has no bfloat16 of its own.
        array = tf.cast(reader.get_tensor(name), tf.float32).numpy()
        scale = _SCALES.format(index)
        variable.assign(array * reader.get_tensor(scale) if scale in shapes else np.asarray(array))


def _mismatch(what: str, where: str) -> MismatchError:
    return MismatchError(what, where=where, remedy=_REMEDY)
