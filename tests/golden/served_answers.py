"""Answers of a SavedModel to the requests whose answers are kept."""

from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (its operations are in the graph)

TEXTS = ["the old miller counts", "every sailor sells «tea»!\nZoë"]
_SAMPLING = {
    "num_tokens": ("int32", [8, 5]),
    "temperature": ("float32", [0.0, 1.0]),
    "top_k": ("int32", [0, 20]),
    "top_p": ("float32", [1.0, 0.9]),
    "seed": ("int32", [0, 6]),
    "stop_token_id": ("int32", [-1, -1]),
}
_IDS = {"token_ids": [[3, 9, 14, 2, 31], [38, 5, 8, 0, 0]], "lengths": [5, 3]}
_TARGETS = {"target_ids": [[9, 14, 2, 31, 1], [5, 8, 22, 0, 0]]}


def served_answers(folder: Path) -> dict:
    """Asks every signature, twice those that have memory.

    Args:
        folder: path of the version.

    Returns:
        Dict with the inputs and outputs of all signatures, and their answers.
    """
    signatures = tf.saved_model.load(str(folder)).signatures
    memory = {
        "memory_states": np.zeros((2, 0, 0, 0), "float32"),
        "memory_valid_length": np.zeros(2, "int32"),
    }
    ids = {name: np.array(values, "int32") for name, values in _IDS.items()}
    targets = {name: np.array(values, "int32") for name, values in _TARGETS.items()}
    texts = {"texts": np.array([text.encode() for text in TEXTS])}
    sampling = {name: np.array(values, dtype) for name, (dtype, values) in _SAMPLING.items()}
    requests = {
        "score": ids | targets,
        "next_token": ids,
        "generate": ids | sampling,
        "score_text": texts,
        "next_token_text": texts,
        "generate_text": texts | sampling,
    }
    answers = {
        "tokenize": _ask(signatures["tokenize"], texts),
        "detokenize": _ask(signatures["detokenize"], ids),
    }
    for name, request in requests.items():
        state = dict(memory)
        if name.endswith("_text"):
            state["previous_token_ids"] = np.full(2, -1, "int32")
        first = signatures[name](**_tensors(request | state))
        # The memory of one answer is that of the next request.
        state |= {key: first[key].numpy() for key in memory}
        if name.endswith("_text"):
            state["previous_token_ids"] = first["last_token_ids"].numpy()
        answers[name] = [_plain(first), _ask(signatures[name], request | state)]
    return {"signatures": _interface(signatures), "answers": answers}


def _interface(signatures) -> dict:
    found = {}
    for name in sorted(signatures):
        inputs = signatures[name].structured_input_signature[1]
        outputs = signatures[name].structured_outputs
        found[name] = {
            side: {
                key: [spec.dtype.name, None if spec.shape.rank is None else spec.shape.as_list()]
                for key, spec in sorted(specs.items())
            }
            for side, specs in (("inputs", inputs), ("outputs", outputs))
        }
    return found


def _ask(signature, request) -> dict:
    return _plain(signature(**_tensors(request)))


def _tensors(values) -> dict:
    return {name: tf.constant(value) for name, value in values.items()}


def _plain(answer) -> dict:
    found = {}
    for name, tensor in sorted(answer.items()):
        values = tensor.numpy()
        if values.dtype == object:
            values = np.array([text.hex() for text in values.ravel()]).reshape(values.shape)
        # Memory is checked by what the next answer makes of it.
        found[name] = list(values.shape) if name == "memory_states" else values.tolist()
    return found
