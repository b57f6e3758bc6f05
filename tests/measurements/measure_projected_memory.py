"""Tokens a second of evaluation with keys and values remembered, and without.

    python -m tests.measurements.measure_projected_memory --memory 1600 3800 --peer-python PATH

One row, segments of 128, 12 layers of width 512, float32. The peer is Hugging
Face's `TransfoXLLMHeadModel` in a process of its own that PATH (or
TXL_PEER_PYTHON) runs. All take turns, and the ratios are of neighbours in time,
since other work on the machine slows all of them down.
"""

import argparse
import json
import os
import statistics
import time

import numpy as np

import txl_tf
from tests.hugging_face_peer import HuggingFacePeer
from txl_tf.config.experiment import EvaluationConfig
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.text_rows import EvaluationText

SEGMENT_LENGTH = 128


def text_of(num_tokens, vocabulary_size):
    tokens = np.random.default_rng(0).integers(0, vocabulary_size, num_tokens).astype("int32")
    sizes = {"num_bytes": num_tokens, "num_characters": num_tokens, "num_words": 1}
    return EvaluationText.of_tokens("random", tokens, **sizes)


def evaluator_of(keeps, memory_length, num_layers, jit_compile):
    config = txl_tf.preset("enwik8_base").replace(
        num_layers=num_layers, segment_length=SEGMENT_LENGTH, memory_length=memory_length
    )
    evaluation = EvaluationConfig(
        batch_size=1, segment_length=SEGMENT_LENGTH, memory_length=memory_length
    )
    return Evaluator(config, evaluation, jit_compile=jit_compile, keeps=keeps)


def seconds_per_token(evaluator, text):
    begin = time.perf_counter()
    result = evaluator.evaluate(text, step=0)
    return (time.perf_counter() - begin) / result.num_tokens, result.total_nats


def measure(memory_length, arguments):
    options = memory_length, arguments.layers, arguments.xla or None
    projected, hidden = (evaluator_of(each, *options) for each in ("auto", "hidden_states"))
    hidden.load_weights_of(projected.model)
    text = text_of(arguments.segments * SEGMENT_LENGTH + 1, projected.config.vocabulary_size)
    peer = None
    if arguments.peer_python:
        peer = HuggingFacePeer(
            arguments.peer_python, memory_length, arguments.layers, SEGMENT_LENGTH
        )
        peer.seconds_per_token(1)
    nats = [seconds_per_token(each, text)[1] for each in (projected, hidden)]
    seconds = {"projected": [], "hidden": [], "peer": []}
    for _ in range(arguments.rounds):
        seconds["projected"].append(seconds_per_token(projected, text)[0])
        if peer is not None:
            seconds["peer"].append(peer.seconds_per_token(arguments.peer_segments))
        seconds["hidden"].append(seconds_per_token(hidden, text)[0])
    figures = {
        "memory_length": memory_length,
        "relative_difference_of_nats": abs(nats[0] / nats[1] - 1),
    }
    for name, values in seconds.items():
        if values:
            ratios = [
                theirs / ours for ours, theirs in zip(seconds["projected"], values, strict=True)
            ]
            figures[f"{name}_tokens_per_second"] = round(1 / statistics.median(values), 1)
            figures[f"times_{name}"] = round(statistics.median(ratios), 2)
            figures[f"times_{name}_each_round"] = [round(ratio, 2) for ratio in ratios]
    if peer is not None:
        peer.close()
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", type=int, nargs="+", default=[1600, 3800])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--segments", type=int, default=32)
    parser.add_argument("--peer-segments", type=int, default=4)
    parser.add_argument("--peer-python", default=os.environ.get("TXL_PEER_PYTHON"))
    parser.add_argument("--xla", action="store_true", help="compile with XLA")
    arguments = parser.parse_args()
    for memory_length in arguments.memory:
        print(json.dumps(measure(memory_length, arguments)), flush=True)


if __name__ == "__main__":
    main()
