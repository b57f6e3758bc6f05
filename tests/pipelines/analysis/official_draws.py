"""Lets a run begin with the weights and have the masks that the official code draws."""

import contextlib
import dataclasses
import json
import subprocess
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow as tf

from txl_tf.convert.pytorch import load_official_pytorch
from txl_tf.data.segment_reader import SegmentReader
from txl_tf.layers.feed_forward import SeededDropout
from txl_tf.training.train_step import TrainStep
from txl_tf.training.trainer import Trainer

PEER = Path(__file__).with_name("peer_official_draws.py")
MASKS = "official_masks"


def unpacked_masks(packed, shapes):
    """The masks of a step from their bits, rows first where there are rows.

    Args:
        packed: uint8 tensor of any shape; the lowest bit of a byte is the first.
        shapes: list of shapes in the order of the bits, time first.

    Returns:
        List of bool tensors, `(B, T, D)` where the shape was `(T, B, D)`.
    """
    shifts = tf.constant(list(range(8)), tf.uint8)
    bits = tf.bitwise.right_shift(tf.reshape(packed, [-1, 1]), shifts) & 1
    masks = tf.split(tf.reshape(bits, [-1]) > 0, [int(np.prod(each)) for each in shapes])
    masks = [tf.reshape(*each) for each in zip(masks, shapes, strict=True)]
    return [tf.transpose(each, [1, 0, 2]) if len(each.shape) == 3 else each for each in masks]


class OfficialDraws:
    """The random numbers of one run of the official PyTorch code.

    Everything else stays what it is: the trainer, its step, the model. A batch
    brings its masks along, and a dropout takes its own instead of hashing one.

    Args:
        python: str. A Python with `torch`.
        experiment: `ExperimentConfig`.
        folder: path of an existing folder, for the initial weights.
    """

    def __init__(self, python, experiment, folder):
        self._python = python
        self._experiment = experiment
        self._weights_path = Path(folder) / "official_initial_weights.npz"
        self._masks = None  # of the step that is being traced

    @property
    def _sizes(self):
        num_rows = self._experiment.training.global_batch_size
        return dataclasses.asdict(self._experiment.model) | {"num_rows": num_rows}

    def _mask_shapes(self):
        """Shapes of all masks of a step, in the order of the draws, time first."""
        sizes = self._sizes
        segment, hidden = sizes["segment_length"], sizes["hidden_dim"]
        state = (segment, sizes["num_rows"], hidden)
        inner = (segment, sizes["num_rows"], sizes["intermediate_dim"])
        positions = (segment + sizes["memory_length"], hidden)
        return [state, positions, *[state, inner, state] * sizes["num_layers"], state]

    def _peer(self, first_step):
        seed = str(self._experiment.training.seed)
        words = [self._python, PEER, self._weights_path, json.dumps(self._sizes), seed]
        return subprocess.Popen([*words, str(first_step)], stdout=subprocess.PIPE)

    def _packed_masks(self, first_step):
        """A data set of the masks of every step, `(rows, bytes)`: batches have rows."""
        num_bits = sum(int(np.prod(shape)) for shape in self._mask_shapes())
        shape = (self._sizes["num_rows"], num_bits // 8 // self._sizes["num_rows"])

        def steps():
            with self._peer(first_step) as peer:
                try:
                    while packed := peer.stdout.read(shape[0] * shape[1]):
                        yield np.frombuffer(packed, np.uint8).reshape(shape)
                finally:
                    peer.terminate()

        spec = tf.TensorSpec(shape, tf.uint8)
        return tf.data.Dataset.from_generator(steps, output_signature=spec).prefetch(2)

    def _initial_model(self):
        with self._peer(0) as peer:
            peer.stdout.read(1)  # then the weights are written
            peer.terminate()
        return load_official_pytorch(
            self._weights_path, memory_length=self._experiment.model.memory_length
        )

    @contextlib.contextmanager
    def used(self):
        """While it is open, what is trained is what the official code would train."""
        create, read, make_batch = Trainer.__init__, SegmentReader.dataset_fn, TrainStep._batch

        def create_trainer(trainer, *arguments):
            create(trainer, *arguments)
            initial = {each.path: each for each in self._initial_model().trainable_variables}
            for variable in trainer.model.trainable_variables:
                variable.assign(initial.pop(variable.path))
            assert not initial

        def read_with_masks(reader, first_step, **arguments):
            batches = read(reader, first_step=first_step, **arguments)
            both = tf.data.Dataset.zip(batches, self._packed_masks(first_step))
            return both.map(lambda batch, packed: {**batch, MASKS: packed})

        def batch_with_masks(step, inputs, *arguments):
            self._masks = iter(unpacked_masks(inputs[MASKS], self._mask_shapes()))
            return make_batch(step, inputs, *arguments)

        def next_mask(layer, shape, seed):
            mask = next(self._masks)
            assert tuple(mask.shape) == tuple(shape), (layer.path, mask.shape, shape)
            return mask

        with (
            mock.patch.object(Trainer, "__init__", create_trainer),
            mock.patch.object(SegmentReader, "dataset_fn", read_with_masks),
            mock.patch.object(TrainStep, "_batch", batch_with_masks),
            mock.patch.object(SeededDropout, "_mask", next_mask),
        ):
            yield
