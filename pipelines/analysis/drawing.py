"""What draws the figures of an analysis, which is not installed by default."""

import importlib.util

from txl_tf.errors import UsageError


def require_matplotlib() -> None:
    """Raises UsageError where Matplotlib is not installed, without importing it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "The figures of this analysis are drawn by Matplotlib, which is not installed.",
            remedy="python -m pip install 'txl-tf[plots]'",
        )
