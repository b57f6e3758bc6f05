"""Sampling settings of an export: of a request, of the writing loop, of a sampler object.

Shape letters used in this module: B rows, K tokens that end a row, V vocabulary.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.export import guards
from txl_tf.samplers import (
    GreedySampler,
    MinPSampler,
    RandomSampler,
    TopKSampler,
    TopPSampler,
)


class WriterSettings(NamedTuple):
    """Settings of every row of the writing loop.

    Attributes:
        num_tokens: int32 tensor `(B,)`. The most tokens to write.
        temperature: float32 tensor `(B,)`. 0 is always the most probable.
        top_k: int32 tensor `(B,)`. 0 is all tokens.
        top_p: float32 tensor `(B,)`. 1 is all tokens.
        log_min_p: float32 tensor `(B,)`. Minus infinity is all tokens.
        seed: int32 tensor `(B,)`.
        stop_token_ids: int32 tensor `(B, K)`. A row ends with the first of them; -1 is none.
    """

    num_tokens: Any
    temperature: Any
    top_k: Any
    top_p: Any
    log_min_p: Any
    seed: Any
    stop_token_ids: Any

    @classmethod
    def specs(cls) -> "WriterSettings":
        """Returns the specs of all tensors."""
        floats = ("temperature", "top_p", "log_min_p")
        rows = {name: tf.float32 if name in floats else tf.int32 for name in cls._fields}
        specs = {name: tf.TensorSpec([None], dtype) for name, dtype in rows.items()}
        specs["stop_token_ids"] = tf.TensorSpec([None, None], tf.int32)
        return cls(**specs)


class Sampling(NamedTuple):
    """Settings of every row of a request.

    Attributes:
        num_tokens: int32 tensor `(B,)`. The most tokens to write.
        temperature: float32 tensor `(B,)`. 0 is always the most probable.
        top_k: int32 tensor `(B,)`. 0 is all tokens.
        top_p: float32 tensor `(B,)`. 1 is all tokens.
        seed: int32 tensor `(B,)`.
        stop_token_id: int32 tensor `(B,)`. The row ends with it; -1 is none.
    """

    num_tokens: Any
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

    def checked(self, num_rows: tf.Tensor, max_new_tokens: int, vocabulary_size: int) -> "Sampling":
        """Refuses settings that are out of range; returns the others, for `B` rows.

        Raises:
            tf.errors.InvalidArgumentError: When it runs, if one is wrong.
        """
        smallest = tf.float32.as_numpy_dtype(1e-30)  # 0 would leave no token
        ranges = {
            "num_tokens": (1, max_new_tokens),
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
        """Returns the settings as the writing loop takes them."""
        values = self._asdict()
        stop_token_id = values.pop("stop_token_id")
        log_min_p = tf.fill(tf.shape(stop_token_id), -np.float32(np.inf))
        return WriterSettings(**values, log_min_p=log_min_p, stop_token_ids=stop_token_id[:, None])


class ServedSampler(TopPSampler):
    """Sampler with settings for each row, which can do what each sampler by itself does.

    Args:
        settings: `WriterSettings`.
    """

    def __init__(self, settings: WriterSettings) -> None:
        super().__init__(settings.top_p, settings.temperature, settings.top_k)
        self._log_min_p = settings.log_min_p

    def candidates(self, logits):
        logits = super().candidates(logits)
        lowest = tf.reduce_max(logits, axis=-1, keepdims=True) + self._log_min_p[:, None]
        return tf.where(logits >= lowest, logits, -np.float32(np.inf))


_OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""Settings that change nothing."""


def sampler_settings(sampler: Any) -> dict[str, float]:
    """Returns the settings of a sampler as numbers.

    Args:
        sampler: `GreedySampler`, `RandomSampler`, `TopKSampler`, `TopPSampler` or
            `MinPSampler`.

    Returns:
        Dict of `temperature`, `top_k`, `top_p` and `min_p`.

    Raises:
        ValueError: If it is another one, which no graph holds.
    """
    kind = type(sampler)
    if kind is GreedySampler:
        return {**_OFF, "temperature": 0.0}
    kinds = {
        RandomSampler: (),
        TopKSampler: (("top_k", "k"),),
        TopPSampler: (("top_p", "p"), ("top_k", "k")),
        MinPSampler: (("min_p", "min_p"),),
    }
    if kind not in kinds:
        raise ValueError(
            "`sampler` must be greedy, random, top-k, top-p or min-p. "
            f"Received: sampler={sampler!r}"
        )
    found = {name: getattr(sampler, attribute) for name, attribute in kinds[kind]}
    found = {name: value for name, value in found.items() if value is not None}
    return {**_OFF, "temperature": sampler.temperature, **found}


def writer_settings(
    numbers: dict[str, float],
    num_tokens: int,
    seeds: tf.Tensor,
    stop_token_ids: list[int],
) -> WriterSettings:
    """Returns the settings of rows that are written alike.

    Args:
        numbers: dict, from `sampler_settings`.
        num_tokens: int. The most tokens to write.
        seeds: int32 tensor `(B,)`.
        stop_token_ids: list of ints.
    """
    num_rows = tf.shape(seeds)[0]
    min_p = numbers["min_p"]
    rows = {
        "num_tokens": np.int32(num_tokens),
        "temperature": np.float32(numbers["temperature"]),
        "top_k": np.int32(numbers["top_k"]),
        "top_p": np.float32(numbers["top_p"]),
        "log_min_p": np.float32(math.log(min_p) if min_p else -math.inf),
    }
    # One that is none, so that the shape is known.
    stops = tf.constant([stop_token_ids or [-1]], tf.int32)
    return WriterSettings(
        **{name: tf.fill([num_rows], value) for name, value in rows.items()},
        seed=seeds,
        stop_token_ids=tf.tile(stops, [num_rows, 1]),
    )
