"""Loading of an exported version, and the switch to newer versions as they appear."""

import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from txl_tf.serving.errors import RequestError, StatusCode
from txl_tf.serving.request_shapes import (
    element_bytes,
    inputs_explained,
    invalid,
    require_names,
)
from txl_tf.storage.files import first_line, is_remote, list_folder, read_file

DEFAULT_SIGNATURE = "serving_default"
"""The name of the signature of a request that names none."""
_END_OF_PREAMBLE = "<stack traces unavailable>\n"
_NOT_FOR_CLIENTS = "__saved_model_init_op"
# A layer's copies of memory, its keys and values; the logits and their probabilities.
_COPIES_OF_ROWS = 6
_COPIES_OF_LOGITS = 4
_TOKENS_AT_A_TIME = 512
_BYTES_PER_TOKEN = 16  # ids, targets, nats, whether it counts
_WITHOUT_MODEL = {"tokenize", "detokenize"}
_MOST_CHARACTERS, _BYTES_PER_PIECE = 1024, 4


class LoadedVersion:
    """Loaded version of an export; stateless, so threads may share it.

    Args:
        folder: str. Path of a SavedModel.
        number: int. Its version.

    Attributes:
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
        """Returns inputs and outputs of a signature; an empty name is the default one.

        Raises:
            RequestError: INVALID_ARGUMENT if there is none of that name.
        """
        name = name or DEFAULT_SIGNATURE
        if name not in self.signatures:
            known = ", ".join(sorted(self.signatures))
            raise invalid(f'Serving signature name: "{name[:40]}" not found; there are: {known}.')
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
        with inputs_explained(signature_name or DEFAULT_SIGNATURE, definition):
            require_names(inputs, definition)
        for name in only:
            if name not in definition.outputs:
                raise invalid(f"The signature has no output `{name[:40]}`.")
        function = self._loaded.signatures[signature_name or DEFAULT_SIGNATURE]
        try:
            tensors = {
                name: tf.constant(array, tf.as_dtype(definition.inputs[name].dtype))
                for name, array in inputs.items()
            }
            left_out = {
                name: tf.constant(tf.make_ndarray(value))
                for name, value in definition.defaults.items()
                if name not in tensors
            }
            outputs = function(**tensors, **left_out)
        except tf.errors.OpError as error:
            raise RequestError(StatusCode(error.error_code), _words_of(error)) from error
        except (TypeError, ValueError) as error:
            raise invalid(str(error)) from error
        return {name: outputs[name].numpy() for name in only or outputs}

    def memory_bytes(
        self, signature_name: str, shapes: Mapping[str, Sequence[int]], text_bytes: int = 0
    ) -> int:
        """Roughly how much memory an answer takes, known before it is begun.

        Rows have all that the signature's shapes promise of them, also where a
        request leaves it out; the widest variable stands for the logits. A signature
        that takes no memory begins with one as large as that of the others.

        Args:
            signature_name: str. As in `predict`.
            shapes: dict of input name to its sizes.
            text_bytes: int. The longest text of the request.
        """
        definition = self.signature(signature_name)
        sent = sum(
            math.prod(sizes) * element_bytes(definition.inputs[name])
            for name, sizes in shapes.items()
        )
        num_rows = max((sizes[0] for sizes in shapes.values() if sizes), default=1)
        num_tokens = max((sizes[1] for sizes in shapes.values() if len(sizes) == 2), default=1)
        name = signature_name or DEFAULT_SIGNATURE
        if "perplexity" in definition.outputs or "num_scored" in definition.outputs:
            num_tokens = max(num_tokens, self._text_tokens(text_bytes))
        runs_model = name not in _WITHOUT_MODEL
        per_row = max(map(_row_bytes, self.signatures.values())) if runs_model else 0
        per_row = max(per_row, _row_bytes(definition))
        logits = 4 * self._widest * min(num_tokens, _TOKENS_AT_A_TIME)
        # Rows of tokens are as long as the longest text, in which a byte may be a token.
        per_row = _COPIES_OF_ROWS * per_row + _BYTES_PER_TOKEN * text_bytes
        return 2 * sent + num_rows * (per_row + _COPIES_OF_LOGITS * logits)

    def _text_tokens(self, text_bytes: int) -> int:
        # Bytes and characters are few tokens to choose from; others stand for several bytes.
        return text_bytes // (_BYTES_PER_PIECE if self._widest > _MOST_CHARACTERS else 1)


def _row_bytes(definition: meta_graph_pb2.SignatureDef) -> int:
    """Returns what a signature's shapes promise of a row."""
    return sum(
        math.prod(max(int(axis.size), 1) for axis in tensor.tensor_shape.dim[1:])
        * element_bytes(tensor)
        for tensor in (*definition.inputs.values(), *definition.outputs.values())
    )


def _widest_variable(folder: str) -> int:
    """Returns the largest axis of all variables: most often the vocabulary."""
    prefix = os.path.join(folder, "variables", "variables")
    shapes = [shape for _, shape in tf.train.list_variables(prefix)]
    return max((max(shape) for shape in shapes if len(shape) > 1), default=1)


def _words_of(error: tf.errors.OpError) -> str:
    """Returns the message of a TensorFlow error without its Python preamble."""
    words = error.message.rpartition(_END_OF_PREAMBLE)[2]
    return words.rpartition(" [Op:")[0] or words


_LOGGER = logging.getLogger(__name__)
_NUMBER = re.compile(r"[1-9][0-9]*|0")
_HIGHEST = 2**63 - 1
_LONGEST_WAIT_SECONDS = 600.0


class _Refusal(NamedTuple):
    why: str
    state: object
    wait_seconds: float
    next_time: float


class VersionWatcher:
    """Holder of one complete model version, which newer versions replace.

    A request keeps the version it began with. A version that is not as its
    checksums say, or cannot be loaded for whatever reason, is refused, and the one
    before it answers. It is tried again when its files change; otherwise ever
    more seldom, because each time all of it is read.

    Args:
        folder: str. The folder of all versions, which are named by numbers.
        verify: function of the path of a version that raises an error if it is
            not complete or not what was written.
        poll_seconds: float. Time between two looks at the folder.
    """

    def __init__(
        self, folder: str, verify: Callable[[str], object], *, poll_seconds: float
    ) -> None:
        self._folder = folder
        self._verify = verify
        self._poll_seconds = poll_seconds
        self._loaded: LoadedVersion | None = None
        self._refusals: dict[int, _Refusal] = {}
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def current(self, version: int | None = None) -> LoadedVersion:
        """Returns the version that answers requests from now on.

        Raises:
            RequestError: UNAVAILABLE if there is none yet, NOT_FOUND if it is
                another than `version`.
        """
        loaded = self._loaded
        if loaded is None:
            raise RequestError(StatusCode.UNAVAILABLE, "No version is loaded yet.")
        if version not in (None, loaded.number):
            message = f"Version {version} is not served; version {loaded.number} is."
            raise RequestError(StatusCode.NOT_FOUND, message)
        return loaded

    @property
    def has_version(self) -> bool:
        """Whether a version is loaded."""
        return self._loaded is not None

    @property
    def refused(self) -> dict[int, str]:
        """Why versions were not loaded, by number, the highest first."""
        return {number: refusal.why for number, refusal in sorted(self._refusals.items())[::-1]}

    def look(self) -> None:
        """Loads the highest version that is as it was written, if that is another.

        Raises:
            OSError: If the folder cannot be read.
        """
        names = filter(_NUMBER.fullmatch, list_folder(self._folder))
        numbers = sorted((number for number in map(int, names) if number <= _HIGHEST), reverse=True)
        self._refusals = {
            number: refusal for number, refusal in self._refusals.items() if number in numbers
        }
        for number in numbers:
            if self._loaded is not None and number == self._loaded.number:
                return
            if self._is_stopped.is_set():
                return
            if self._try(number):
                return

    def start(self) -> None:
        """Looks once, which raises as `look` does, and from now on regularly."""
        self._is_stopped.clear()
        self.look()
        self._thread = threading.Thread(target=self._watch, name="versions", daemon=True)
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> bool:
        """Looks no more; what is loaded still answers.

        Returns:
            Whether a version that is being verified or loaded is done in time.
        """
        self._is_stopped.set()
        if self._thread is None:
            return True
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _watch(self) -> None:
        while not self._is_stopped.wait(self._poll_seconds):
            try:
                self.look()
            except Exception as error:
                # The folder may be there again the next time.
                _LOGGER.warning("The versions cannot be read: %s", first_line(error))

    def _try(self, number: int) -> bool:
        """Whether a version could be loaded; a refused one only if it is time."""
        path = os.path.join(self._folder, str(number))
        state = _state_of(path)
        refusal = self._refusals.get(number)
        if refusal and refusal.state == state and time.monotonic() < refusal.next_time:
            return False
        try:
            self._verify(path)
            self._loaded = LoadedVersion(path, number)
        except Exception as error:  # whatever a version does, the one before it answers on
            self._refuse(number, first_line(error) or type(error).__name__, state)
            return False
        self._refusals.pop(number, None)
        _LOGGER.info("Version %d is loaded.", number)
        return True

    def _refuse(self, number: int, why: str, state: object) -> None:
        before = self._refusals.get(number)
        if before is None or before.why != why:
            _LOGGER.warning("Version %d is not loaded: %s", number, why)
        wait_seconds = self._poll_seconds
        if before is not None and before.state == state:
            wait_seconds = min(2 * before.wait_seconds, _LONGEST_WAIT_SECONDS)
        next_time = time.monotonic() + wait_seconds
        self._refusals[number] = _Refusal(why, state, wait_seconds, next_time)


def _state_of(folder: str) -> object:
    """Returns a value that changes when files of a local folder change."""
    if is_remote(folder):
        return None
    found = []
    for path, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            try:
                status = os.lstat(os.path.join(path, name))
            except OSError:
                continue
            found.append((path, name, status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(found)
