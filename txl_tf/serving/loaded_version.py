"""One version of an export, loaded and ready to answer."""

import os
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from txl_tf.file_storage import read_file
from txl_tf.serving.request_error import RequestError
from txl_tf.serving.status_code import StatusCode

_DEFAULT_SIGNATURE = "serving_default"
_END_OF_PREAMBLE = "<stack traces unavailable>\n"
_NOT_FOR_CLIENTS = "__saved_model_init_op"


class LoadedVersion:
    """Answers requests from their inputs alone; threads may share it.

    Args:
        folder: str. Path of a SavedModel.
        number: int. Its version.

    Attributes:
        number: as given.
        signatures: dict of signature name to its `SignatureDef`.

    Raises:
        OSError: If it cannot be read.
    """

    def __init__(self, folder: str, number: int) -> None:
        self.number = number
        graph = saved_model_pb2.SavedModel.FromString(
            read_file(os.path.join(folder, "saved_model.pb"))
        )
        self.signatures: dict[str, meta_graph_pb2.SignatureDef] = {
            name: definition
            for name, definition in graph.meta_graphs[0].signature_def.items()
            if name != _NOT_FOR_CLIENTS
        }
        # The functions die with the object that they were loaded with.
        self._loaded = tf.saved_model.load(folder)

    def signature(self, name: str) -> meta_graph_pb2.SignatureDef:
        """What a signature takes and gives.

        Args:
            name: str. Its name; empty for the default one.

        Returns:
            `SignatureDef`.

        Raises:
            RequestError: INVALID_ARGUMENT if there is none of that name.
        """
        name = name or _DEFAULT_SIGNATURE
        if name not in self.signatures:
            known = ", ".join(sorted(self.signatures))
            raise _invalid(f'Serving signature name: "{name}" not found; there are: {known}.')
        return self.signatures[name]

    def predict(
        self, signature_name: str, inputs: Mapping[str, np.ndarray], only: Sequence[str] = ()
    ) -> dict[str, np.ndarray]:
        """Answers one request.

        Args:
            signature_name: str. Name of a signature; empty for the default one.
            inputs: dict of input name to array.
            only: names of the outputs to return; empty for all.

        Returns:
            Dict of output name to array.

        Raises:
            RequestError: If the inputs are not those of the signature, or the
                model refuses their values.
        """
        definition = self.signature(signature_name)
        _require_inputs(inputs, definition)
        for name in only:
            if name not in definition.outputs:
                raise _invalid(f"The signature has no output `{name}`.")
        function = self._loaded.signatures[signature_name or _DEFAULT_SIGNATURE]
        try:
            tensors = {
                name: tf.constant(array, tf.as_dtype(definition.inputs[name].dtype))
                for name, array in inputs.items()
            }
            outputs = function(**tensors)
        except tf.errors.OpError as error:
            raise RequestError(StatusCode(error.error_code), _words_of(error)) from error
        except (TypeError, ValueError) as error:
            raise _invalid(str(error)) from error
        return {name: outputs[name].numpy() for name in only or outputs}


def _require_inputs(
    inputs: Mapping[str, np.ndarray], definition: meta_graph_pb2.SignatureDef
) -> None:
    missing = sorted(set(definition.inputs) - set(inputs))
    surplus = sorted(set(inputs) - set(definition.inputs))
    if missing or surplus:
        raise _invalid(
            f"The inputs are not those of the signature: missing {missing}, unexpected {surplus}."
        )
    for name, array in inputs.items():
        expected = tf.as_dtype(definition.inputs[name].dtype)
        found = tf.string if array.dtype.kind in "OS" else tf.as_dtype(array.dtype)
        if found != expected:
            raise _invalid(f"{name} is of type {found.name}; it must be {expected.name}.")


def _words_of(error: tf.errors.OpError) -> str:
    """What an operation says, without what TensorFlow puts around it in Python."""
    words = error.message.rpartition(_END_OF_PREAMBLE)[2]
    return words.rpartition(" [Op:")[0] or words


def _invalid(message: str) -> RequestError:
    return RequestError(StatusCode.INVALID_ARGUMENT, message)
