"""Corpora WikiText-2 and WikiText-103, one document per article."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from txl_tf.data.corpora.archives import CorpusFiles
from txl_tf.data.corpora.corpus import Corpus, ExpectedCounts, TokenizerOptions
from txl_tf.data.corpora.tar_unpacking import CorpusMember
from txl_tf.data.documents import grouped_documents
from txl_tf.data.partial_download import PublishedFile
from txl_tf.data.text import split_at_lines

_BLANK = b" \n"
_GATHERED_BYTES = 1 << 16


def wikitext_articles(pieces: Iterable[bytes]) -> Iterator[Iterator[bytes]]:
    """Cuts a WikiText file into its articles.

    An article begins with a title such as ` = Robert Boulter = ` on a line by
    itself, between two lines that are blank. Headings within an article have
    more than one `=`. The blank line before the title belongs to the article, so that
    the articles together are the file.

    Args:
        pieces: iterable of bytes. As `split_at_lines` gives them.

    Yields:
        Articles, each an iterator over pieces of whole lines. An article must
        be read before the next one is asked for.
    """
    return grouped_documents(_numbered(_lines(pieces)))


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield from piece.splitlines(keepends=True) if b"\r" not in piece else _by_newline(piece)


def _by_newline(piece: bytes) -> list[bytes]:
    lines = piece.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _numbered(lines: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    number, size = 0, 0
    # A title is known by the line after it, so two lines are always held back.
    gathered: list[bytes] = []
    before, title = next(lines, b""), next(lines, b"")
    for after in lines:
        if before == after == _BLANK and _is_title(title):
            if gathered:
                yield number, b"".join(gathered)
                gathered, size = [], 0
            number += 1
        gathered.append(before)
        size += len(before)
        if size >= _GATHERED_BYTES:
            yield number, b"".join(gathered)
            gathered, size = [], 0
        before, title = title, after
    if rest := b"".join([*gathered, before, title]):
        yield number, rest


def _is_title(line: bytes) -> bool:
    return line.startswith(b" = ") and line.endswith(b" = \n") and not line.startswith(b" = = ")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WikiText(Corpus):
    """Good and featured articles of Wikipedia, in words, with `<unk>` for rare ones.

    A word is what white space separates, `<unk>` is one like any other, and
    every line ends with `<eos>`, blank ones too. An article is a document.
    """

    split_files: ClassVar[Mapping[str, CorpusMember]]

    @property
    def members(self) -> tuple[CorpusMember, ...]:
        """The three files of the archive."""
        return tuple(self.split_files.values())

    def documents(self, files: CorpusFiles) -> Mapping[str, Iterable[Iterable[bytes]]]:
        """Makes the documents of the splits; see `Corpus`."""
        return {name: _Articles(files, member) for name, member in self.split_files.items()}


class _Articles:
    """The articles of one file."""

    def __init__(self, files: CorpusFiles, member: CorpusMember) -> None:
        self._files = files
        self._member = member

    def __iter__(self) -> Iterator[Iterator[bytes]]:
        return wikitext_articles(split_at_lines(self._files.blocks(self._member)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class WikiText103(WikiText):
    """WikiText-103: 103 million tokens to train on, a vocabulary of 267,735."""

    name: ClassVar[str] = "wikitext103"
    archive: ClassVar[PublishedFile] = PublishedFile(
        name="wikitext-103-v1.zip",
        urls=("https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-103-v1.zip",),
        size_bytes=190_229_076,
        sha256="242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
    )
    split_files: ClassVar[Mapping[str, CorpusMember]] = {
        "train": CorpusMember(
            path="wikitext-103/wiki.train.tokens",
            other_paths=("wiki.train.tokens", "train.txt"),
            max_bytes=600_000_000,
        ),
        "valid": CorpusMember(
            path="wikitext-103/wiki.valid.tokens",
            other_paths=("wiki.valid.tokens", "valid.txt"),
            max_bytes=1_142_309,
            size_bytes=1_142_309,
            sha256="9aee9f52d6e77de6c7751fc5e7c44287db3ec0eaf15477098acc6b93c1c4250b",
        ),
        "test": CorpusMember(
            path="wikitext-103/wiki.test.tokens",
            other_paths=("wiki.test.tokens", "test.txt"),
            max_bytes=1_281_077,
            size_bytes=1_281_077,
            sha256="56db52eb157b1ab5c89646eef70510c1eca6e12a3bfdb99f0d6b05b4eacb75b9",
        ),
    }

    @property
    def tokenizer_options(self) -> TokenizerOptions:
        """Words and line ends; the vocabulary is that of the train split."""
        return TokenizerOptions(
            kind="words",
            special_tokens=("<eos>",),
            eos_token="<eos>",
            unknown_token="<unk>",
            add_eos=True,
            counted_splits=("train",),
        )

    @property
    def expected_counts(self) -> tuple[ExpectedCounts, ...]:
        """Returns the published counts; tokens are words and line ends."""
        return (
            ExpectedCounts(split="train", words=101_425_671, tokens=103_227_021),
            ExpectedCounts(split="valid", words=213_886, documents=60, tokens=217_646),
            ExpectedCounts(split="test", words=241_211, documents=60, tokens=245_569),
        )

    @property
    def vocabulary_sizes(self) -> tuple[int, ...]:
        """The words of the train split and `<eos>`."""
        return (267_735,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WikiText2(WikiText):
    """WikiText-2: two million tokens to train on, a vocabulary of 33,278."""

    name: ClassVar[str] = "wikitext2"
    archive: ClassVar[PublishedFile] = PublishedFile(
        name="wikitext-2-v1.zip",
        urls=("https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip",),
        size_bytes=4_475_746,
        sha256="92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
    )
    split_files: ClassVar[Mapping[str, CorpusMember]] = {
        split: CorpusMember(
            path=f"wikitext-2/wiki.{split}.tokens",
            other_paths=(f"wiki.{split}.tokens", f"{split}.txt"),
            max_bytes=20_000_000,
            size_bytes=size_bytes,
        )
        for split, size_bytes in (("train", None), ("valid", 1_121_681), ("test", 1_256_449))
    }

    @property
    def tokenizer_options(self) -> TokenizerOptions:
        """Words and line ends; the vocabulary is that of all three splits."""
        return TokenizerOptions(
            kind="words", special_tokens=("<eos>",), eos_token="<eos>", add_eos=True
        )

    @property
    def expected_counts(self) -> tuple[ExpectedCounts, ...]:
        """Returns the published counts; tokens are words and line ends."""
        return (
            ExpectedCounts(split="train", words=2_051_910, tokens=2_088_628),
            ExpectedCounts(split="valid", words=213_886, tokens=217_646),
            ExpectedCounts(split="test", words=241_211, tokens=245_569),
        )

    @property
    def vocabulary_sizes(self) -> tuple[int, ...]:
        """The words of all three splits and `<eos>`."""
        return (33_278,)
