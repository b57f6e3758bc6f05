"""Holds gradients under dropout against those of Hugging Face's port.

    python -m tests.measurements.measure_dropout_gradients --peer-python PATH

PATH is a Python with `torch` and `transformers` 4.34.1. Weights, segment and
memory are the same; the masks are not, so what is compared is the mean of many
draws. For each variable: the squared distance of the two means over what draws
of one distribution would lead to, which is 1 on average. The control is this
model with a rate of dropout that is a fifth higher: it tells that a difference
would have been seen.
"""

import argparse
import dataclasses
import statistics
import subprocess
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tests.small_models import small_config
from txl_tf.convert.hugging_face import load_hugging_face, save_hugging_face
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL

PEER = "tests/training/peer_dropout_gradients.py"
NUM_ROWS = 8
CONFIG = small_config(
    24,
    32,
    vocabulary_size=64,
    width=48,
    num_heads=3,
    num_layers=3,
    dropout=0.1,
    attention_dropout=0.1,
    initializer_stddev=0.15,
)


def create_case():
    """Tokens `(B, T + 1)` and hidden states `(L, B, M, D)`."""
    random = np.random.default_rng(0)
    tokens = random.integers(0, CONFIG.vocabulary_size, (NUM_ROWS, CONFIG.segment_length + 1))
    shape = (CONFIG.num_layers, NUM_ROWS, CONFIG.memory_length, CONFIG.hidden_dim)
    return {"tokens": tokens.astype("int32"), "memory": random.normal(size=shape).astype("float32")}


@dataclasses.dataclass
class Draws:
    """Losses of all draws, and by path the mean gradient and its mean square."""

    losses: list
    means: dict
    squares: dict

    def variance_of_mean(self, path):
        """Of the mean gradient of a variable, summed over its elements."""
        return (self.squares[path] - self.means[path] ** 2).sum() / (len(self.losses) - 1)


def draws_here(model, case, num_draws):
    variables = model.trainable_variables
    states = tuple(tf.constant(states) for states in case["memory"])
    memory = Memory(states, tf.fill([NUM_ROWS], CONFIG.memory_length))
    tokens = tf.constant(case["tokens"])

    @tf.function
    def draw(number):
        seed = tf.stack([tf.constant(1), number])
        with tf.GradientTape() as tape:
            nll, _ = model.score(
                tokens[:, :-1], tokens[:, 1:], memory, dropout_seed=seed, training=True
            )
            loss = tf.reduce_mean(nll)
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    losses = []
    sums = {variable.path: np.zeros((2, *variable.shape)) for variable in variables}
    for number in range(num_draws):
        loss, gradients = draw(tf.constant(number))
        losses.append(float(loss))
        for variable, gradient in zip(variables, gradients, strict=True):
            gradient = gradient.numpy().astype("float64")
            sums[variable.path] += np.stack([gradient, gradient**2])
    means, squares = (
        {path: each[place] / num_draws for path, each in sums.items()} for place in (0, 1)
    )
    return Draws(losses, means, squares)


def draws_of_peer(python, model, case, num_draws):
    with tempfile.TemporaryDirectory() as parent:
        folder = save_hugging_face(model, Path(parent) / "model")
        case_path = folder / "case.npz"
        np.savez(case_path, **case)
        words = [python, "-W", "ignore", PEER, str(folder), str(case_path), str(num_draws)]
        subprocess.run(words, check=True)
        means, squares = (weights_by_path(folder / file) for file in ("mean.npz", "square.npz"))
        return Draws(np.load(folder / "losses.npy").tolist(), means, squares)


def weights_by_path(path):
    """Gradients have the names and shapes of weights, so they are loaded as weights are."""
    variables = load_hugging_face(path).trainable_variables
    return {variable.path: np.asarray(variable, "float64") for variable in variables}


def report(name, draws, peer):
    ratios = {
        path: ((draws.means[path] - peer.means[path]) ** 2).sum()
        / (draws.variance_of_mean(path) + peer.variance_of_mean(path))
        for path in peer.means
    }
    worst = max(ratios, key=ratios.get)
    error = statistics.stdev(draws.losses) / len(draws.losses) ** 0.5
    print(
        f"{name}: loss {statistics.fmean(draws.losses):.5f} +- {error:.5f}, of the port "
        f"{statistics.fmean(peer.losses):.5f}; of {len(ratios)} "
        f"variables, squared distance over that of chance: mean "
        f"{statistics.fmean(ratios.values()):.2f}, largest {ratios[worst]:.2f} ({worst})",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", metavar="PATH", required=True)
    parser.add_argument("--draws", type=int, default=2000)
    arguments = parser.parse_args()
    keras.utils.set_random_seed(1)
    model, case = TransformerXL(CONFIG), create_case()
    higher = TransformerXL(CONFIG.replace(dropout=1.2 * CONFIG.dropout))
    higher.set_weights(model.get_weights())
    peer = draws_of_peer(arguments.peer_python, model, case, arguments.draws)
    report("here", draws_here(model, case, arguments.draws), peer)
    report("control", draws_here(higher, case, arguments.draws), peer)


if __name__ == "__main__":
    main()
