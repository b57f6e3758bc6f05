"""The public names; `__init__.py` reads them from here and imports each on first use."""

from txl_tf.tasks.answers import write_predictions as write_predictions
from txl_tf.tasks.examples import Example as Example, TaskData as TaskData
from txl_tf.tasks.metrics import compute_metrics as compute_metrics
from txl_tf.tasks.own_data import Columns as Columns, read_own_data as read_own_data
