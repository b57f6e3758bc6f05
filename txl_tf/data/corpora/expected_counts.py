"""What the splits of a published corpus must come to."""

import dataclasses
from collections.abc import Iterable

from txl_tf.data.split_manifest import SplitManifest
from txl_tf.errors import DataDamagedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpectedCounts:
    """The counts of one split; `None` where nobody has published one.

    Args:
        split: str. Name of the split.
        bytes: optional int. Bytes of its text.
        characters: optional int. UTF-8 code points of its text.
        words: optional int. Words of its text.
        documents: optional int. Documents of its text.
        tokens: optional int. Tokens, with the options of the corpus.
    """

    split: str
    bytes: int | None = None
    characters: int | None = None
    words: int | None = None
    documents: int | None = None
    tokens: int | None = None


def check_expected_counts(
    corpus_name: str,
    expected: Iterable[ExpectedCounts],
    splits: Iterable[SplitManifest],
    *,
    with_tokens: bool,
) -> None:
    """Compares what was prepared with what must come out.

    Args:
        corpus_name: str. Name of the corpus, for errors.
        expected: iterable of `ExpectedCounts`. One for each split.
        splits: iterable of `SplitManifest`. What was prepared.
        with_tokens: bool. Whether the tokens are compared as well; another
            tokenizer has another number of them.

    Raises:
        DataDamagedError: If a split is missing, or a count is another one.
    """
    found = {split.name: split for split in splits}
    for counts in expected:
        where = f"corpus {corpus_name}, split {counts.split}"
        if counts.split not in found:
            raise _surprise("The split is missing.", where)
        for unit in ("bytes", "characters", "words", "documents", "tokens"):
            wanted = getattr(counts, unit)
            actual = getattr(found[counts.split], unit)
            if wanted in (None, actual) or (unit == "tokens" and not with_tokens):
                continue
            raise _surprise(f"There must be {wanted} {unit}, but there are {actual}.", where)


def _surprise(what: str, where: str) -> DataDamagedError:
    remedy = "Check that the text is the published one; results on it would not compare."
    return DataDamagedError(what, where=where, remedy=remedy)
