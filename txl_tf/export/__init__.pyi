"""The public names; `__init__.py` reads them from here and imports each on first use."""

from txl_tf.export.saved_model import (
    export_saved_model as export_saved_model,
    next_version as next_version,
)
from txl_tf.export.signatures import ExportOptions as ExportOptions
