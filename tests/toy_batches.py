"""Names of `tests.small_models` for modules that still import them from here."""

from tests.small_models import *  # noqa: F403
