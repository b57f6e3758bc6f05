"""An error as text for a terminal: at most three lines, of bounded width, all printable."""

from txl_tf.errors import JobError

MAX_LINE_CHARACTERS = 400
_TAIL_CHARACTERS = 100


def printed_error(error: JobError) -> str:
    """What is said of an error.

    Args:
        error: `JobError`.

    Returns:
        One to three lines: what, where and what to do, as far as it is known.
    """
    parts = (error.what, error.where, error.remedy)
    lines = [line for part in parts if (line := one_line(str(part)))]
    first, *others = lines or [type(error).__name__]
    return "\n".join([f"txl: {first}", *(f"  {line}" for line in others)])


def one_line(text: str) -> str:
    """A text on one line that every terminal can show.

    What breaks lines becomes a space, other control characters and lone
    surrogates are escaped, and of a long text the middle is left out.

    Args:
        text: str.

    Returns:
        At most `MAX_LINE_CHARACTERS` characters.
    """
    # Cut first, because to escape a huge text takes long, and then what escapes have added.
    shown = " ".join(part.strip() for part in _cut(text, len(text)).splitlines())
    escaped = "".join(each if each.isprintable() else _escaped(each) for each in shown.strip())
    return _cut(escaped, max(len(text), len(escaped)))


def _cut(text: str, full_length: int) -> str:
    if len(text) <= MAX_LINE_CHARACTERS:
        return text
    gap = f" [... {full_length} characters ...] "
    head = MAX_LINE_CHARACTERS - _TAIL_CHARACTERS - len(gap)
    return f"{text[:head]}{gap}{text[-_TAIL_CHARACTERS:]}"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
