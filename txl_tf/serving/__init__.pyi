"""The public names; `__init__.py` reads them from here and imports each on first use."""

from txl_tf.serving.client import GrpcTransport as GrpcTransport
from txl_tf.serving.client import PredictionError as PredictionError
from txl_tf.serving.client import RestTransport as RestTransport
from txl_tf.serving.client import ServingSession as ServingSession
from txl_tf.serving.client import TextState as TextState
