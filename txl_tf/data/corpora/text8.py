"""text8: 100,000,000 characters of cleaned Wikipedia text, a to z and space."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from txl_tf.data.corpora.byte_ranges import byte_range
from txl_tf.data.corpora.corpus import Corpus
from txl_tf.data.corpora.corpus_files import CorpusFiles
from txl_tf.data.corpora.corpus_member import CorpusMember
from txl_tf.data.corpora.expected_counts import ExpectedCounts
from txl_tf.data.corpora.tokenizer_options import TokenizerOptions
from txl_tf.data.downloads.published_file import PublishedFile
from txl_tf.data.text_sources.text_pieces import text_pieces

_MEGABYTE = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text8(Corpus):
    """text8, one document a split.

    Train, valid and test are the first 90, the next 5 and the last 5 million
    characters, without the spaces at the beginning and the end of each, which
    the official script takes off.
    """

    name: ClassVar[str] = "text8"
    archive: ClassVar[PublishedFile] = PublishedFile(
        name="text8.zip",
        urls=("http://mattmahoney.net/dc/text8.zip",),
        size_bytes=31_344_016,
        sha256="a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
    )
    member: ClassVar[CorpusMember] = CorpusMember(
        path="text8",
        max_bytes=100 * _MEGABYTE,
        size_bytes=100 * _MEGABYTE,
        sha256="6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7",
    )
    split_bytes: ClassVar[Mapping[str, int]] = {
        "train": 90 * _MEGABYTE,
        "valid": 5 * _MEGABYTE,
        "test": 5 * _MEGABYTE,
    }

    @property
    def members(self) -> tuple[CorpusMember, ...]:
        """The one file of the archive."""
        return (self.member,)

    @property
    def tokenizer_options(self) -> TokenizerOptions:
        """Characters, by count over all three splits."""
        return TokenizerOptions(kind="characters")

    @property
    def expected_counts(self) -> tuple[ExpectedCounts, ...]:
        """One document for each split; how many spaces are taken off, nobody has published."""
        return tuple(ExpectedCounts(split=name, documents=1) for name in self.split_bytes)

    @property
    def vocabulary_sizes(self) -> tuple[int, ...]:
        """26 letters and the space."""
        return (27,)

    def documents(self, files: CorpusFiles) -> Mapping[str, Iterable[Iterable[bytes]]]:
        """Makes the documents of the splits; see `Corpus`."""
        stop = 0
        splits = {}
        for name, size in self.split_bytes.items():
            splits[name] = (_Stretch(files, self.member, stop, stop + size),)
            stop += size
        return splits


class _Stretch:
    """A stretch of the text without white space at its ends."""

    def __init__(self, files: CorpusFiles, member: CorpusMember, start: int, stop: int) -> None:
        self._files = files
        self._member = member
        self._bounds = start, stop

    def __iter__(self) -> Iterator[bytes]:
        blocks = byte_range(self._files.blocks(self._member), *self._bounds, where="text8")
        yield from text_pieces(_stripped(blocks))


def _stripped(blocks: Iterable[bytes]) -> Iterator[bytes]:
    held = b""
    is_first = True
    for block in blocks:
        text = held + (block.lstrip() if is_first else block)
        is_first = is_first and not text
        # White space may yet turn out to be the end.
        kept = text.rstrip()
        held = text[len(kept) :]
        if kept:
            yield kept
