"""Tokens per second of generation, beside those of Hugging Face's Transformer-XL.

    python -m tests.measurements.measure_speed --memory 1600 3800 --peer-python PATH

One row, memory full, one token at a time, 12 layers of width 512 by default. The
peer's numbers are of `TransfoXLLMHeadModel`, called with one token and its `mems`,
in a process of its own that PATH (or TXL_PEER_PYTHON) runs; it needs `torch` and
`transformers`. The two take turns, and the ratios are of neighbours in time, since
other work on the machine slows both down.
"""

import argparse
import json
import os
import statistics
import time

import numpy as np

from tests.hugging_face_peer import HuggingFacePeer

_VOCABULARY_SIZE = 205


class Own:
    """A session with full memory; `streaming` asks for every token by itself."""

    def __init__(self, memory_length, num_layers, jit_compile):
        from tests.small_models import small_config
        from txl_tf.generation import GenerationSession
        from txl_tf.models.transformer_xl import TransformerXL
        from txl_tf.samplers import GreedySampler

        model = TransformerXL(
            small_config(
                128,
                memory_length,
                vocabulary_size=_VOCABULARY_SIZE,
                width=512,
                num_heads=8,
                num_layers=num_layers,
                intermediate_dim=2048,
            )
        )
        memory = model.initial_memory(1)
        generator = np.random.default_rng(0)
        memory = memory._replace(
            states=tuple(
                generator.normal(size=each.shape).astype("float32") for each in memory.states
            ),
            valid_length=np.array([memory_length], np.int32),
        )
        self._session = GenerationSession(
            model, GreedySampler(), memory=memory, jit_compile=jit_compile
        )
        begin = time.perf_counter()
        self._session.write([[1]], num_tokens=1)
        self.compile_seconds = time.perf_counter() - begin

    def seconds_per_token(self, num_tokens, streaming=False):
        begin = time.perf_counter()
        if streaming:
            for _ in range(num_tokens):
                self._session.write(num_tokens=1)
        else:
            self._session.write(num_tokens=num_tokens)
        return (time.perf_counter() - begin) / num_tokens


def measure(memory_length, arguments):
    own = Own(memory_length, arguments.layers, not arguments.without_xla)
    peer = None
    if arguments.peer_python:
        peer = HuggingFacePeer(arguments.peer_python, memory_length, arguments.layers)
        peer.seconds_per_token(1)
    own.seconds_per_token(80)
    own_seconds, streaming_seconds, peer_seconds = [], [], []
    for _ in range(arguments.rounds):
        # 64 tokens are one turn of memory, so every round pays for one.
        own_seconds.append(own.seconds_per_token(64))
        if peer is not None:
            peer_seconds.append(peer.seconds_per_token(arguments.peer_tokens))
        streaming_seconds.append(own.seconds_per_token(64, streaming=True))
    figures = {
        "memory_length": memory_length,
        "compile_seconds": own.compile_seconds,
        "tokens_per_second": 1 / statistics.median(own_seconds),
        "tokens_per_second_best_round": 1 / min(own_seconds),
        "streaming_tokens_per_second": 1 / statistics.median(streaming_seconds),
    }
    if peer is not None:
        peer.close()
        ratios = [theirs / ours for ours, theirs in zip(own_seconds, peer_seconds, strict=True)]
        figures["peer_tokens_per_second"] = 1 / statistics.median(peer_seconds)
        figures["peer_tokens_per_second_best_round"] = 1 / min(peer_seconds)
        figures["times_faster_best_rounds"] = min(peer_seconds) / min(own_seconds)
        figures["times_faster"] = statistics.median(ratios)
        figures["times_faster_each_round"] = ratios
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", type=int, nargs="+", default=[1600, 3800])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-tokens", type=int, default=6)
    parser.add_argument("--peer-python", default=os.environ.get("TXL_PEER_PYTHON"))
    parser.add_argument("--without-xla", action="store_true")
    arguments = parser.parse_args()
    for memory_length in arguments.memory:
        print(json.dumps(measure(memory_length, arguments), indent=1), flush=True)


if __name__ == "__main__":
    main()
