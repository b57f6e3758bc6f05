"""What a client needs of a way to a server."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from tensorflow.core.protobuf import meta_graph_pb2


class Transport(Protocol):
    """Sends requests to the signatures of one model; threads may share it."""

    def predict(
        self, signature_name: str, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Asks a signature.

        Args:
            signature_name: str. Name of the signature.
            inputs: dict of input name to array of the type that the signature
                takes; object arrays of bytes for strings.

        Returns:
            Dict of output name to array.

        Raises:
            PredictionError: If the server refuses, or does not answer in time.
        """
        ...

    def signatures(self) -> dict[str, meta_graph_pb2.SignatureDef]:
        """What the model offers.

        Returns:
            Dict of signature name to its inputs and outputs.

        Raises:
            PredictionError: If the server refuses, or does not answer in time.
        """
        ...

    def close(self) -> None:
        """Gives the connections back."""
        ...
