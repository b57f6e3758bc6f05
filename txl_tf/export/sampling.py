"""What a request says of the text it wants written.

Shape letters used in this module: B rows, V vocabulary.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from txl_tf.export import guards


class Sampling(NamedTuple):
    """Settings of every row.

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
    def specs(cls, *, are_checked: bool) -> list[tf.TensorSpec]:
        """What a signature takes.

        Args:
            are_checked: bool. Whether the shapes can be relied on.

        Returns:
            List of `tf.TensorSpec`.
        """
        shape = [None] if are_checked else None
        floats = ("temperature", "top_p")
        return [
            tf.TensorSpec(shape, tf.float32 if name in floats else tf.int32, name)
            for name in cls._fields
        ]

    def checked(self, num_rows: tf.Tensor, max_new_tokens: int, vocabulary_size: int) -> "Sampling":
        """Refuses settings that are out of range.

        Args:
            num_rows: int32 scalar, `B`.
            max_new_tokens: int. The most tokens that may be asked for.
            vocabulary_size: int. `V`.

        Returns:
            The same settings.

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
