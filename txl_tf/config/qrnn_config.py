"""The configuration of the QRNN baseline."""

import dataclasses
from typing import Literal

from txl_tf.config.recurrent_config import RecurrentConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class QRNNConfig(RecurrentConfig):
    """Sizes and options of a `QRNNLanguageModel`.

    Raises:
        ValueError: If a value is out of its range.
    """

    kind: Literal["qrnn"] = "qrnn"
    """Tells the model of a file apart from others."""
