"""Sampling settings of an export, for a request and for the sampling loop.

Shape letters used in this module: B rows, K tokens that end a row, V vocabulary.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.config.generation import GenerationConfig
from txl_tf.export import guards


class WriterSettings(NamedTuple):
    """Settings of every row of the sampling loop: tensors `(B,)`, `stop_token_ids` `(B, K)`.

    0 turns off `top_k` and `min_p`, 1 turns off `top_p` and the penalty, and -1 is no stop id. A
    row ends with the first stop id.
    """

    max_tokens: Any
    temperature: Any
    top_k: Any
    top_p: Any
    min_p: Any
    repetition_penalty: Any
    seed: Any
    stop_token_ids: Any

    @classmethod
    def specs(cls) -> "WriterSettings":
        """Returns the specs of all tensors."""
        floats = ("temperature", "top_p", "min_p", "repetition_penalty")
        rows = {name: tf.float32 if name in floats else tf.int32 for name in cls._fields}
        specs = {name: tf.TensorSpec([None], dtype) for name, dtype in rows.items()}
        specs["stop_token_ids"] = tf.TensorSpec([None, None], tf.int32)
        return cls(**specs)


class Sampling(NamedTuple):
    """Settings of every row of a request: tensors `(B,)`.

    0 turns off `top_k`, 1 turns off `top_p`, and -1 is no stop id.
    """

    max_tokens: Any
    temperature: Any
    top_k: Any
    top_p: Any
    seed: Any
    stop_token_id: Any

    @classmethod
    def specs(cls) -> list[tf.TensorSpec]:
        """Returns the input specs, whose shapes are open."""
        floats = ("temperature", "top_p")
        return [
            tf.TensorSpec(None, tf.float32 if name in floats else tf.int32, name)
            for name in cls._fields
        ]

    def checked(
        self, num_rows: tf.Tensor, max_output_tokens: int, vocabulary_size: int
    ) -> "Sampling":
        """Checks settings and broadcasts them to `B` rows.

        A value out of range ends the request as an invalid argument.
        """
        smallest = tf.float32.as_numpy_dtype(1e-30)  # 0 would leave no token
        ranges = {
            "max_tokens": (1, max_output_tokens),
            "temperature": (0.0, tf.float32.max),
            "top_k": (0, tf.int32.max),
            "top_p": (smallest, 1.0),
            "stop_token_id": (-1, vocabulary_size - 1),
        }
        rows = {
            name: guards.row_vector(value, name, num_rows) for name, value in self._asdict().items()
        }
        for name, (lowest, highest) in ranges.items():  # any seed will do
            rows[name] = guards.in_range(rows[name], name, lowest, highest)
        return Sampling(**rows)

    def for_writer(self) -> WriterSettings:
        """Returns the settings in the form of the sampling loop."""
        values = self._asdict()
        stop_token_id = values.pop("stop_token_id")
        return WriterSettings(
            **values,
            min_p=tf.zeros_like(self.temperature),
            repetition_penalty=tf.ones_like(self.temperature),
            stop_token_ids=stop_token_id[:, None],
        )


def writer_settings(
    config: GenerationConfig, seeds: tf.Tensor, stop_token_ids: list[int]
) -> WriterSettings:
    """Returns equal settings for all rows, with int32 seeds `(B,)`."""
    num_rows = tf.shape(seeds)[0]
    rows = {
        "max_tokens": np.int32(config.max_tokens),
        "temperature": np.float32(config.temperature),
        "top_k": np.int32(config.top_k),
        "top_p": np.float32(config.top_p),
        "min_p": np.float32(config.min_p),
        "repetition_penalty": np.float32(config.repetition_penalty),
    }
    # A dummy id, so that the axis is never empty.
    stops = tf.constant([stop_token_ids or [-1]], tf.int32)
    return WriterSettings(
        **{name: tf.fill([num_rows], value) for name, value in rows.items()},
        seed=seeds,
        stop_token_ids=tf.tile(stops, [num_rows, 1]),
    )
