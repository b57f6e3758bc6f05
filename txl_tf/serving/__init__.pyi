"""The public names; `__init__.py` reads them from here and imports each on first use."""

from txl_tf.serving.grpc_transport import GrpcTransport as GrpcTransport
from txl_tf.serving.rest_transport import PredictionError as PredictionError
from txl_tf.serving.rest_transport import RestTransport as RestTransport
from txl_tf.serving.session import (
    SamplingSettings as SamplingSettings,
)
from txl_tf.serving.session import (
    ServingSession as ServingSession,
)
from txl_tf.serving.session import (
    TextState as TextState,
)
