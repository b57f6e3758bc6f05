"""Result of one check of `txl doctor`."""

import dataclasses
from typing import Any, Literal, Self

from txl_tf.errors import JobError, MismatchError

_INDENT = " " * 9


@dataclasses.dataclass(frozen=True)
class Finding:
    """Result of one check: verdict, message and remedy.

    Attributes:
        check: str. What was looked at, in a word or two.
        status: str. `ok`, `warning` (the job may run, but see) or `fault` (it
            will not run, or not right).
        what: str. What was found.
        remedy: str. The command that mends it; empty where nothing is wrong.
        error: subclass of `JobError`. What a fault ends the job with.
    """

    check: str
    status: Literal["ok", "warning", "fault"]
    what: str
    remedy: str = ""
    error: type[JobError] = MismatchError

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
        """One line, and one more with the remedy if there is one."""
        line = f"{self.status:<8} {self.check}: {self.what}"
        return f"{line}\n{_INDENT}{self.remedy}" if self.remedy else line

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = {name: getattr(self, name) for name in ("check", "status", "what", "remedy")}
        exit_code = self.error.exit_code if self.status == "fault" else 0
        return {**values, "exit_code": exit_code}
