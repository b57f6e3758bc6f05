"""The public names; `__init__.py` reads them from here and imports each on first use."""

from txl_tf.tasks.examples import Answer as Answer
from txl_tf.tasks.examples import Example as Example
from txl_tf.tasks.examples import TaskData as TaskData
