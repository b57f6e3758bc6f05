"""Trains Hugging Face's Transformer-XL in the setting of the official curve.

    PYTHON tests/pipelines/analysis/train_hugging_face.py --shared ../shared --seed 1

PYTHON is one with `torch` and `transformers` 4.34.1. The port has the official
PyTorch model, line by line, so this says what that code gives with the text,
the schedule and the initialisation as they are written down. It prints a line of
JSON with the mean training loss of every hundred steps, and the validation loss
with a memory of 64 and of 0, in nats per byte.
"""

import argparse
import json
import math
import statistics
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from transformers import TransfoXLConfig, TransfoXLModel

VOCABULARY_SIZE = 256
HIDDEN_DIM = 128
NUM_LAYERS = 4
SEGMENT_LENGTH = 64
NUM_ROWS = 16
NUM_VALID_ROWS = 10
NUM_STEPS = 2000
WARMUP_STEPS = 100
PEAK = 1e-3
FLOOR = 0.01
TRAIN_BYTES = 3_900_000
VALID_BYTES = 250_000


def create_model(memory_length):
    config = TransfoXLConfig(
        vocab_size=VOCABULARY_SIZE,
        cutoffs=[],
        d_model=HIDDEN_DIM,
        d_embed=HIDDEN_DIM,
        n_head=4,
        d_head=32,
        d_inner=512,
        div_val=1,
        n_layer=NUM_LAYERS,
        mem_len=memory_length,
        clamp_len=-1,
        same_length=False,
        dropout=0.1,
        dropatt=0.0,
        untie_r=False,
        init_std=0.02,
        layer_norm_epsilon=1e-5,
    )
    return TransfoXLModel(config)


def losses_of(model, bias, tokens, memory):
    """Nats of all targets of `(rows, tokens + 1)`, and the next memory."""
    outputs = model(tokens[:, :-1], mems=memory, return_dict=True)
    table = model.word_emb.emb_layers[0].weight  # tied to the softmax
    logits = functional.linear(outputs.last_hidden_state, table, bias)
    targets = tokens[:, 1:].reshape(-1)
    nats = functional.cross_entropy(logits.reshape(-1, VOCABULARY_SIZE), targets, reduction="none")
    return nats, list(outputs.mems)


def nothing_read(num_rows):
    return [torch.empty(0, num_rows, HIDDEN_DIM)] * NUM_LAYERS


def rows_of(text, num_rows):
    """A sixteenth, or a tenth, of the text in each row."""
    length = len(text) // num_rows
    return torch.tensor(text[: num_rows * length].reshape(num_rows, length).astype("int64"))


def learning_rate(step):
    """That of update `step`, counted from 1."""
    if step < WARMUP_STEPS:
        return PEAK * step / WARMUP_STEPS
    done = min(1.0, (step - WARMUP_STEPS) / (NUM_STEPS - WARMUP_STEPS))
    return PEAK * (FLOOR + (1.0 - FLOOR) * 0.5 * (1.0 + math.cos(math.pi * done)))


def train(model, bias, rows, num_steps):
    parameters = [*model.parameters(), bias]
    optimizer = torch.optim.Adam(parameters, lr=PEAK)
    memory, found = nothing_read(NUM_ROWS), []
    model.train()
    for step in range(num_steps):
        start = step * SEGMENT_LENGTH
        segment = rows[:, start : start + SEGMENT_LENGTH + 1]
        nats, memory = losses_of(model, bias, segment, memory)
        loss = nats.mean()
        optimizer.param_groups[0]["lr"] = learning_rate(step + 1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.25)
        optimizer.step()
        found.append(loss.item())
    return found


@torch.no_grad()
def evaluate(model, bias, rows, memory_length):
    model.eval()
    model.mem_len = memory_length
    memory, total, count = nothing_read(len(rows)), 0.0, 0
    for start in range(0, rows.shape[1] - 1, SEGMENT_LENGTH):
        segment = rows[:, start : start + SEGMENT_LENGTH + 1]
        nats, memory = losses_of(model, bias, segment, memory)
        if memory_length == 0:
            memory = nothing_read(len(rows))
        total += nats.sum().item()
        count += len(nats)
    return total / count


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=NUM_STEPS)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    source = arguments.shared / "data" / "enwik8-prefix" / "enwik8.first4150000"
    text = np.frombuffer(source.read_bytes(), np.uint8)
    model = create_model(SEGMENT_LENGTH)
    bias = torch.nn.Parameter(torch.zeros(VOCABULARY_SIZE))
    losses = train(model, bias, rows_of(text[:TRAIN_BYTES], NUM_ROWS), arguments.steps)
    valid = rows_of(text[-VALID_BYTES:], NUM_VALID_ROWS)
    figures = {
        "seed": arguments.seed,
        "train_nll_per_100_steps": [
            round(statistics.fmean(losses[first : first + 100]), 4)
            for first in range(0, len(losses), 100)
        ],
        "valid_nll": {
            f"T64_M{length}": round(evaluate(model, bias, valid, length), 4) for length in (64, 0)
        },
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
