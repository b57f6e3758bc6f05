"""Checks of `txl doctor`, each with a `Finding`; only the probe imports TensorFlow."""

import dataclasses
from typing import Any, Literal, Self

from txl_tf.errors import JobError, MismatchError

_INDENT = " " * 9


@dataclasses.dataclass(frozen=True)
class Finding:
    """Result of one check: verdict, message and remedy."""

    check: str
    """What was checked, in a word or two."""
    status: Literal["ok", "warning", "fault"]
    """A job may run after a warning; after a fault it fails or computes wrong numbers."""
    what: str
    """What was found."""
    remedy: str = ""
    """The command that repairs it; empty where nothing is wrong."""
    error: type[JobError] = MismatchError
    """The error with which a fault ends the job."""

    @classmethod
    def ok(cls, check: str, what: str) -> Self:
        """Creates a finding without a problem."""
        return cls(check, "ok", what)

    @classmethod
    def warning(cls, check: str, what: str, remedy: str) -> Self:
        """Creates a finding about a deviation from the tested set."""
        return cls(check, "warning", what, remedy)

    @classmethod
    def fault(
        cls, check: str, what: str, remedy: str, error: type[JobError] = MismatchError
    ) -> Self:
        """Creates a finding about a problem that must be repaired."""
        return cls(check, "fault", what, remedy, error)

    def describe(self) -> str:
        """Returns one line, and one more with the remedy if there is one."""
        line = f"{self.status:<8} {self.check}: {self.what}"
        return f"{line}\n{_INDENT}{self.remedy}" if self.remedy else line

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        values = {name: getattr(self, name) for name in ("check", "status", "what", "remedy")}
        exit_code = self.error.exit_code if self.status == "fault" else 0
        return {**values, "exit_code": exit_code}
