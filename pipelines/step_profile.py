"""Profile of some steps of a run, for TensorBoard: `txl train --profile-steps 100:110`."""

import contextlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from txl_tf.config.base import MAX_STEPS
from txl_tf.errors import UsageError

if TYPE_CHECKING:
    from txl_tf.storage.writable_folder import WritableFolder
    from txl_tf.training.trainer import Trainer

_STEPS = re.compile(r"(\d{1,18}):(\d{1,18})", re.ASCII)


def add_profile_argument(parser: Any) -> None:
    """Adds `--profile-steps`."""
    parser.add_argument(
        "--profile-steps",
        metavar="FIRST:LAST",
        type=parse_steps,
        help="steps to profile, from 1; whole loops that contain them (default: none)",
    )


def parse_steps(text: str) -> range:
    """Reads the first and the last step, such as `100:110`; both are profiled."""
    matched = _STEPS.fullmatch(text)
    first, last = map(int, matched.groups()) if matched else (0, 0)
    if not 1 <= first <= last <= MAX_STEPS:
        raise UsageError(
            "The steps to profile are a first and a last one, counted from 1.",
            where=f"--profile-steps {text[:100]}",
            remedy="Give them as FIRST:LAST, such as 100:110.",
        )
    return range(first, last + 1)


class StepProfile:
    """Profile of the loops that contain `steps`, counted from 1, begun and ended between loops."""

    def __init__(
        self, steps: range | None, folder: "WritableFolder", say: Callable[[str], None]
    ) -> None:
        self._steps = steps
        self._folder = folder
        self._say = say
        self._begun_at: int | None = None
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self._exits.close()

    def before_loop(self, trainer: "Trainer") -> None:
        """Starts the profile if one of its steps is in the next loop."""
        if self._steps is None or self._begun_at is not None:
            return
        step = trainer.step
        first, last = max(step + 1, self._steps[0]), min(trainer.next_stop, self._steps[-1])
        if first > last:
            return
        import tensorflow as tf

        path = self._exits.enter_context(self._folder.reached_by_path())
        tf.profiler.experimental.start(path)
        self._exits.callback(tf.profiler.experimental.stop)
        self._begun_at = step + 1

    def after_loop(self, step: int) -> None:
        """Ends the profile if all of its steps are done."""
        if self._steps is None or self._begun_at is None or step < self._steps[-1]:
            return
        self._exits.close()
        self._say(
            f"Profiled the steps {self._begun_at} to {step}, whole loops: "
            f"{self._folder.path}/plugins/profile"
        )
        self._steps = None
