"""The configuration of the LSTM baseline."""

import dataclasses
from typing import Literal

from txl_tf.config.recurrent_config import RecurrentConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class LSTMConfig(RecurrentConfig):
    """Sizes and options of an `LSTMLanguageModel`.

    Raises:
        ValueError: If a value is out of its range.
    """

    kind: Literal["lstm"] = "lstm"
    """Tells the model of a file apart from others."""
