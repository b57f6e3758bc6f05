"""Parser of a job's arguments, with short help and suggestions in errors."""

import argparse
import os
import textwrap
from collections.abc import Iterator
from typing import Any, NoReturn

from txl_tf.errors import UsageError, did_you_mean

_WIDTH = 80
_HELP_POSITION = 32


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Formatter of at most 80 columns that writes options in few words."""

    def __init__(self, prog: str) -> None:
        width = min(int(os.environ.get("COLUMNS") or _WIDTH), _WIDTH)
        super().__init__(prog, max_help_position=_HELP_POSITION, width=width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return action.option_strings[0].replace("--", "--[no-]")
        if action.option_strings and action.nargs == argparse.ONE_OR_MORE:
            return f"{action.option_strings[0]} {action.metavar} ..."
        return super()._format_action_invocation(action)


def sentence(summary: str) -> str:
    """Returns a summary in lower case as a sentence."""
    return f"{summary[0].upper()}{summary[1:]}."


class JobParser(argparse.ArgumentParser):
    """Parser of a job, or of an analysis.

    Its help has a usage, a sentence, an example and groups of options, without empty lines. Errors
    are UsageErrors.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        defaults = {"add_help": False, "formatter_class": _Formatter}
        super().__init__(*arguments, **{**settings, **defaults})
        self._help = self.add_argument("-h", "--help", action="help", help="show this help")
        self.example = ""
        """Command that runs the job, shown in its help."""

    def describe(self, document: str | None) -> None:
        """Takes the example from the module docstring of a job."""
        lines = iter((document or "").splitlines())
        self.example = next((line for line in map(str.strip, lines) if line.startswith("txl ")), "")
        while self.example.endswith("\\"):
            self.example += "\n    " + next(lines).strip()

    def format_usage(self) -> str:
        """Returns the required arguments; the help lists the others."""
        words = [self.prog, *self._required_words()]
        usage = f"usage: {' '.join(words)}{' [options]' if self._has_choice() else ''}"
        return (
            textwrap.fill(usage, _WIDTH, subsequent_indent=" " * 7, break_on_hyphens=False) + "\n"
        )

    def _has_choice(self) -> bool:
        """Returns true if there are options besides `--help`."""
        others = [each for each in self._actions if each is not self._help]
        return any(each.option_strings and not each.required for each in others)

    def _required_words(self) -> Iterator[str]:
        formatter = self._get_formatter()
        groups = [group for group in self._mutually_exclusive_groups if group.required]
        for group in groups:
            yield f"({'|'.join(action.option_strings[0] for action in group._group_actions)})"
        for action in self._actions:
            if action.required and action.option_strings:
                yield formatter._format_action_invocation(action)
        for action in self._get_positional_actions():
            word = f"{action.metavar}{'...' if action.nargs == argparse.ONE_OR_MORE else ''}"
            yield f"[{word}]" if action.nargs == "?" else word

    def format_help(self) -> str:
        """Returns the short help of a job, or argparse's help if there are subcommands."""
        if self._subparsers is not None:
            return super().format_help()
        if self._has_choice():
            self._help.help = argparse.SUPPRESS
        formatter = self._get_formatter()
        for group in self._action_groups:
            formatter.start_section(group.title)
            if group.description:
                formatter.add_text(textwrap.fill(group.description, _WIDTH - 2))
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        options = formatter.format_help().replace("\n\n", "\n")
        lines = [*textwrap.wrap(self.description or "", _WIDTH), f"  {self.example}"]
        return "\n".join([self.format_usage(), *lines, "", options])

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = list(map(str, action.choices))
        name = action.dest if action.option_strings else action.metavar or action.dest
        raise UsageError(
            f"There is no {name} {value!r}.{did_you_mean(value, known)}",
            where=f"{'/'.join(action.option_strings) or self.prog} {value}",
            remedy=f"Known are: {', '.join(known)}.",
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Suggests a spelling for an unknown option before required ones are checked."""
        known = self._option_string_actions
        has_parsers_below = self._subparsers is not None
        for word in () if has_parsers_below else args or ():
            if word == "--":
                break
            name = word.partition("=")[0]
            # argparse accepts the beginning of an option.
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                raise UsageError(
                    f"`{self.prog}` has no option {name[:100]}.{did_you_mean(name, known)}",
                    where=word[:200],
                    remedy=f"`{self.prog} --help` lists the options.",
                )
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, where=self.prog, remedy=f"See `{self.prog} --help`.")
