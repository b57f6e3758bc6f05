"""Hugging Face's Transformer-XL in a process of its own, to measure against."""

import subprocess

_PROGRAM = """
import sys, time
import torch
from transformers import TransfoXLConfig, TransfoXLLMHeadModel

memory, layers, segment, vocabulary = map(int, sys.argv[1:])
config = TransfoXLConfig(
    vocab_size=vocabulary, cutoffs=[], d_model=512, d_embed=512, n_head=8, d_head=64,
    d_inner=2048, div_val=1, n_layer=layers, mem_len=memory, clamp_len=-1, adaptive=False,
    same_length=False,
)
model = TransfoXLLMHeadModel(config).eval()
mems = [torch.randn(memory, 1, 512) for _ in range(layers)]
tokens = torch.zeros((1, segment), dtype=torch.long)
print("ready", flush=True)
with torch.no_grad():
    for line in sys.stdin:
        count = int(line)
        begin = time.perf_counter()
        for _ in range(count):
            # With labels it scores a segment; without, it predicts what comes next.
            labels = {"labels": tokens} if segment > 1 else {}
            outputs = model(input_ids=tokens, mems=mems, **labels)
            mems = outputs.mems
            if segment == 1:
                tokens = outputs.prediction_scores[:, -1:].argmax(-1)
        print((time.perf_counter() - begin) / (count * segment), flush=True)
"""


class HuggingFacePeer:
    """`TransfoXLLMHeadModel` of width 512, one row, float32, with full memory.

    Args:
        python: path of a Python with `torch` and `transformers` 4.34.1.
        memory_length: int.
        num_layers: int.
        segment_length: int. With 1 it generates greedily, else it scores.
        vocabulary_size: int.
    """

    def __init__(self, python, memory_length, num_layers, segment_length=1, vocabulary_size=205):
        numbers = map(str, (memory_length, num_layers, segment_length, vocabulary_size))
        self._process = subprocess.Popen(
            [python, "-W", "ignore", "-c", _PROGRAM, *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answer()

    def _answer(self):
        while line := self._process.stdout.readline():
            if line.strip() == "ready":
                return None
            if line[0].isdigit():
                return float(line)
        raise RuntimeError(f"The peer ended with {self._process.wait()}.")

    def seconds_per_token(self, num_segments):
        """Runs so many segments."""
        self._process.stdin.write(f"{num_segments}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self):
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()
