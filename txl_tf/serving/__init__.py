"""Talks to a server of an exported model, and serves one for tests and demonstrations.

The public names are imported when they are first used: talking over REST needs
no gRPC, and naming an error no TensorFlow.
"""

from typing import TYPE_CHECKING

from txl_tf.imports import lazy_names

if TYPE_CHECKING:
    from txl_tf.serving.errors import PredictionError
    from txl_tf.serving.grpc_transport import GrpcTransport
    from txl_tf.serving.rest_transport import RestTransport
    from txl_tf.serving.server import LoopbackServer
    from txl_tf.serving.session import SamplingSettings, ServingSession, TextState

_MODULES = {
    "GrpcTransport": "txl_tf.serving.grpc_transport",
    "LoopbackServer": "txl_tf.serving.server",
    "PredictionError": "txl_tf.serving.errors",
    "RestTransport": "txl_tf.serving.rest_transport",
    "SamplingSettings": "txl_tf.serving.session",
    "ServingSession": "txl_tf.serving.session",
    "TextState": "txl_tf.serving.session",
}

__all__ = [
    "GrpcTransport",
    "LoopbackServer",
    "PredictionError",
    "RestTransport",
    "SamplingSettings",
    "ServingSession",
    "TextState",
]

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
