"""The public names; `__init__.py` reads them from here and imports each on first use."""

from txl_tf.harness.harness_model import HarnessModel as HarnessModel
