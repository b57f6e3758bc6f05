"""One version of an export, loaded and ready to answer."""

import math
import os
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from txl_tf.file_storage import read_file
from txl_tf.serving.request_error import RequestError
from txl_tf.serving.request_shapes import element_bytes, invalid, require_names
from txl_tf.serving.status_code import StatusCode

_DEFAULT_SIGNATURE = "serving_default"
_END_OF_PREAMBLE = "<stack traces unavailable>\n"
_NOT_FOR_CLIENTS = "__saved_model_init_op"
# A layer's copies of memory, its keys and values; the logits and their probabilities.
_COPIES_OF_ROWS = 6
_COPIES_OF_LOGITS = 4
_TOKENS_AT_A_TIME = 512


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
        ValueError: If it has no graph. TensorFlow's own errors pass through.
    """

    def __init__(self, folder: str, number: int) -> None:
        self.number = number
        graph = saved_model_pb2.SavedModel.FromString(
            read_file(os.path.join(folder, "saved_model.pb"))
        )
        if not graph.meta_graphs:
            raise ValueError("The SavedModel has no graph.")
        self.signatures: dict[str, meta_graph_pb2.SignatureDef] = {
            name: definition
            for name, definition in graph.meta_graphs[0].signature_def.items()
            if name != _NOT_FOR_CLIENTS
        }
        # The functions die with the object that they were loaded with.
        self._loaded = tf.saved_model.load(folder)
        self._widest = _widest_variable(folder)

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
            raise invalid(f'Serving signature name: "{name}" not found; there are: {known}.')
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
        require_names(inputs, definition)
        for name in only:
            if name not in definition.outputs:
                raise invalid(f"The signature has no output `{name[:40]}`.")
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
            raise invalid(str(error)) from error
        return {name: outputs[name].numpy() for name in only or outputs}

    def memory_bytes(self, signature_name: str, shapes: Mapping[str, Sequence[int]]) -> int:
        """Roughly how much memory an answer takes, known before it is begun.

        Rows have all that the signature's shapes promise of them, also where a
        request leaves it out; the widest variable stands for the logits.

        Args:
            signature_name: str. As in `predict`.
            shapes: dict of input name to its sizes.

        Returns:
            The number of bytes.
        """
        definition = self.signature(signature_name)
        sent = sum(
            math.prod(sizes) * element_bytes(definition.inputs[name])
            for name, sizes in shapes.items()
        )
        num_rows = max((sizes[0] for sizes in shapes.values() if sizes), default=1)
        num_tokens = max((sizes[1] for sizes in shapes.values() if len(sizes) == 2), default=1)
        per_row = sum(
            math.prod(max(int(axis.size), 1) for axis in tensor.tensor_shape.dim[1:])
            * element_bytes(tensor)
            for tensor in (*definition.inputs.values(), *definition.outputs.values())
        )
        logits = 4 * self._widest * min(num_tokens, _TOKENS_AT_A_TIME)
        return 2 * sent + num_rows * (_COPIES_OF_ROWS * per_row + _COPIES_OF_LOGITS * logits)


def _widest_variable(folder: str) -> int:
    """The largest axis of all variables: most often the vocabulary."""
    prefix = os.path.join(folder, "variables", "variables")
    shapes = [shape for _, shape in tf.train.list_variables(prefix)]
    return max((max(shape) for shape in shapes if len(shape) > 1), default=1)


def _words_of(error: tf.errors.OpError) -> str:
    """What an operation says, without what TensorFlow puts around it in Python."""
    words = error.message.rpartition(_END_OF_PREAMBLE)[2]
    return words.rpartition(" [Op:")[0] or words
