"""Choice of the step of a run whose weights a job reads."""

import dataclasses
from typing import TYPE_CHECKING

from .progress import say

if TYPE_CHECKING:
    from txl_tf.model_folder import ModelFolder


def with_chosen_step(source: "ModelFolder") -> "ModelFolder":
    """Chooses the checkpoint of a run, and prints its step."""
    if source.run is None:
        return source
    step, is_best = source.chosen_step()
    say(f"step {step}{', the best of the split valid' if is_best else ''}")
    return dataclasses.replace(source, step=step)
