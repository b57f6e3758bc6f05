"""Corpora enwik8 and text8, both from one dump of the English Wikipedia."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from txl_tf.data.corpora.archives import CorpusFiles, CorpusMember
from txl_tf.data.corpora.corpus import Corpus, ExpectedCounts, TokenizerOptions
from txl_tf.data.documents import line_pattern, marked_documents
from txl_tf.data.partial_download import PublishedFile
from txl_tf.data.text import Reread, Splits, byte_range, split_at_lines
from txl_tf.errors import DataDamagedError

_PAGE = line_pattern(b"  <page>")
_MEGABYTE = 1_000_000


def _member(name: str, sha256: str) -> CorpusMember:
    size = 100 * _MEGABYTE
    return CorpusMember(path=name, max_bytes=size, size_bytes=size, sha256=sha256)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _HundredMegabytes(Corpus):
    """Corpus of one file, cut into the first 90, the next 5 and the last 5 million bytes."""

    member: ClassVar[CorpusMember]
    split_bytes: ClassVar[Mapping[str, int]] = {
        "train": 90 * _MEGABYTE,
        "valid": 5 * _MEGABYTE,
        "test": 5 * _MEGABYTE,
    }

    @property
    def members(self) -> tuple[CorpusMember, ...]:
        """The only file of the archive."""
        return (self.member,)

    def _stretches(self, files: CorpusFiles) -> dict[str, tuple[Any, ...]]:
        """Returns the arguments of `_stretch` for every split."""
        stop = 0
        stretches = {}
        for name, size in self.split_bytes.items():
            stretches[name] = (files, self.member, stop, stop + size)
            stop += size
        return stretches


def _stretch(files: CorpusFiles, member: CorpusMember, start: int, stop: int) -> Iterator[bytes]:
    return byte_range(
        files.blocks(member), start, stop, lambda size: _short(stop, size, member.path)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Enwik8(_HundredMegabytes):
    """enwik8 in bytes, with or without its newlines; a document is a page.

    The published results of Transformer-XL have no newlines, because the official script loses them
    (`newlines="drop"`). Other papers keep them (`"keep"`), so their results do not compare. Valid
    and test begin within a page.
    """

    newlines: str = "drop"

    name: ClassVar[str] = "enwik8"
    archive: ClassVar[PublishedFile] = PublishedFile(
        name="enwik8.zip",
        urls=("http://mattmahoney.net/dc/enwik8.zip",),
        size_bytes=36_445_475,
        sha256="547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
    )
    member: ClassVar[CorpusMember] = _member(
        "enwik8", "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8"
    )

    def __post_init__(self) -> None:
        if self.newlines not in ("drop", "keep"):
            raise ValueError(f'`newlines` must be "drop" or "keep". Received: {self.newlines!r}')

    tokenizer_options: ClassVar[TokenizerOptions] = TokenizerOptions(kind="bytes")
    """Bytes that occur, by count over all three splits."""

    @property
    def expected_counts(self) -> tuple[ExpectedCounts, ...]:
        """Sizes of the splits; none is published for text without newlines."""
        if self.newlines == "drop":
            return tuple(ExpectedCounts(split=name) for name in self.split_bytes)
        return tuple(
            ExpectedCounts(split=name, bytes=size, tokens=size)
            for name, size in self.split_bytes.items()
        )

    @property
    def vocabulary_sizes(self) -> tuple[int, ...]:
        """205 different bytes, including the newline."""
        return (204,) if self.newlines == "drop" else (205,)

    def documents(self, files: CorpusFiles) -> Splits:
        return {
            name: Reread(_pages, self.newlines == "drop", *stretch)
            for name, stretch in self._stretches(files).items()
        }


def _pages(drops_newlines: bool, *stretch: Any) -> Iterator[Iterator[bytes]]:
    pieces = split_at_lines(_stretch(*stretch))
    for page in marked_documents(pieces, _PAGE, keep_mark=True):
        yield _without_newlines(page) if drops_newlines else page


def _without_newlines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        if kept := piece.replace(b"\n", b""):
            yield kept


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text8(_HundredMegabytes):
    """text8, one document per split of 90, 5 and 5 million characters.

    As in the official script, spaces at the beginning and end of each split are stripped.
    """

    name: ClassVar[str] = "text8"
    archive: ClassVar[PublishedFile] = PublishedFile(
        name="text8.zip",
        urls=("http://mattmahoney.net/dc/text8.zip",),
        size_bytes=31_344_016,
        sha256="a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
    )
    member: ClassVar[CorpusMember] = _member(
        "text8", "6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7"
    )

    tokenizer_options: ClassVar[TokenizerOptions] = TokenizerOptions(kind="characters")
    """Characters, by count over all three splits."""

    @property
    def expected_counts(self) -> tuple[ExpectedCounts, ...]:
        """One document per split; the number of stripped spaces is not published."""
        return tuple(ExpectedCounts(split=name, documents=1) for name in self.split_bytes)

    vocabulary_sizes: ClassVar[tuple[int, ...]] = (27,)
    """26 letters and the space."""

    def documents(self, files: CorpusFiles) -> Splits:
        return {
            name: (Reread(_without_ends, *stretch),)
            for name, stretch in self._stretches(files).items()
        }


def _without_ends(*stretch: Any) -> Iterator[bytes]:
    return split_at_lines(_stripped(_stretch(*stretch)))


def _stripped(blocks: Iterable[bytes]) -> Iterator[bytes]:
    held = b""
    is_first = True
    for block in blocks:
        text = held + (block.lstrip() if is_first else block)
        is_first = is_first and not text
        # Trailing white space may be the end of the split.
        kept = text.rstrip()
        held = text[len(kept) :]
        if kept:
            yield kept


def _short(num_bytes: int, found_bytes: int, where: str) -> DataDamagedError:
    return DataDamagedError(
        f"The text must have {num_bytes} bytes, but has {found_bytes}.",
        where=where,
        remedy="Get the file again.",
    )
