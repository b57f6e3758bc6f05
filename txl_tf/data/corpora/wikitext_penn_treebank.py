"""Word corpora with one file per split: WikiText-2, WikiText-103, Penn Treebank."""

import dataclasses
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from txl_tf.data.corpora.archives import CorpusFiles, CorpusMember
from txl_tf.data.corpora.corpus import (
    ExpectedCounts,
    FilePerSplitCorpus,
    TokenizerOptions,
    member_pieces,
)
from txl_tf.data.documents import grouped_documents
from txl_tf.data.partial_download import PublishedFile
from txl_tf.data.text import Reread, Splits

_BLANK = b" \n"
_GATHERED_BYTES = 1 << 16


def wikitext_articles(pieces: Iterable[bytes]) -> Iterator[Iterator[bytes]]:
    """Cuts a WikiText file, in pieces of `split_at_lines`, into articles of whole-line pieces.

    An article begins with the blank line before a title such as ` = Robert Boulter = `, which
    another blank line follows; headings have more than one `=`. Read each article before asking for
    the next.
    """
    return grouped_documents(_numbered(_lines(pieces)))


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield from io.BytesIO(piece)  # ends lines at LF only


def _numbered(lines: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    number, size = 0, 0
    # The line after a title identifies it, so two lines are held back.
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


def _articles(files: CorpusFiles, member: CorpusMember) -> Iterator[Iterator[bytes]]:
    return wikitext_articles(member_pieces(files, member))


@dataclasses.dataclass(frozen=True, kw_only=True)
class WikiText(FilePerSplitCorpus):
    """Good and featured articles of Wikipedia in words, with `<unk>` for rare words.

    White space separates words, and every line, blank or not, ends with `<eos>`. An article is a
    document.
    """

    def documents(self, files: CorpusFiles) -> Splits:
        return {name: Reread(_articles, files, member) for name, member in self.split_files.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WikiText103(WikiText):
    """WikiText-103: 103 million training tokens, a vocabulary of 267,735."""

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

    tokenizer_options: ClassVar[TokenizerOptions] = TokenizerOptions(
        kind="words",
        special_tokens=("<eos>",),
        eos_token="<eos>",
        unknown_token="<unk>",
        add_eos=True,
        counted_splits=("train",),
    )
    """Words and line ends; the vocabulary is that of the train split."""

    @property
    def expected_counts(self) -> tuple[ExpectedCounts, ...]:
        """Published counts; tokens are words and line ends."""
        return (
            ExpectedCounts(split="train", words=101_425_671, tokens=103_227_021),
            ExpectedCounts(split="valid", words=213_886, documents=60, tokens=217_646),
            ExpectedCounts(split="test", words=241_211, documents=60, tokens=245_569),
        )

    vocabulary_sizes: ClassVar[tuple[int, ...]] = (267_735,)
    """The words of the train split and `<eos>`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WikiText2(WikiText):
    """WikiText-2: two million training tokens, a vocabulary of 33,278."""

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

    tokenizer_options: ClassVar[TokenizerOptions] = TokenizerOptions(
        kind="words", special_tokens=("<eos>",), eos_token="<eos>", add_eos=True
    )
    """Words and line ends; the vocabulary is that of all three splits."""

    @property
    def expected_counts(self) -> tuple[ExpectedCounts, ...]:
        """Published counts; tokens are words and line ends."""
        return (
            ExpectedCounts(split="train", words=2_051_910, tokens=2_088_628),
            ExpectedCounts(split="valid", words=213_886, tokens=217_646),
            ExpectedCounts(split="test", words=241_211, tokens=245_569),
        )

    vocabulary_sizes: ClassVar[tuple[int, ...]] = (33_278,)
    """The words of all three splits and `<eos>`."""


def _penn_member(split: str, size_bytes: int, sha256: str) -> CorpusMember:
    return CorpusMember(
        path=f"simple-examples/data/ptb.{split}.txt",
        other_paths=(f"data/ptb.{split}.txt", f"ptb.{split}.txt", f"{split}.txt"),
        max_bytes=size_bytes,
        size_bytes=size_bytes,
        sha256=sha256,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PennTreebank(FilePerSplitCorpus):
    """News of 1989 with 10,000 words: lower case, without punctuation, `N` for numbers.

    Every line ends with `<eos>`. A split is one document, because the files do not mark the ends of
    reports.
    """

    name: ClassVar[str] = "penn_treebank"
    # The SHA-256 of the files is published, but not of the archive.
    archive: ClassVar[PublishedFile] = PublishedFile(
        name="simple-examples.tgz",
        urls=("http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",),
        size_bytes=34_869_662,
    )
    split_files: ClassVar[Mapping[str, CorpusMember]] = {
        "train": _penn_member(
            "train", 5_101_618, "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"
        ),
        "valid": _penn_member(
            "valid", 399_782, "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"
        ),
        "test": _penn_member(
            "test", 449_945, "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"
        ),
    }

    tokenizer_options: ClassVar[TokenizerOptions] = TokenizerOptions(
        kind="words",
        special_tokens=("<eos>",),
        eos_token="<eos>",
        add_eos=True,
        lower_case=True,
    )
    """Words in lower case and line ends; the vocabulary is that of all three splits."""

    @property
    def expected_counts(self) -> tuple[ExpectedCounts, ...]:
        """Sizes of the files; tokens are words and lines."""
        counts = {
            "train": (887_521, 929_589),
            "valid": (70_390, 73_760),
            "test": (78_669, 82_430),
        }
        return tuple(
            ExpectedCounts(
                split=name,
                bytes=self.split_files[name].size_bytes,
                words=words,
                documents=1,
                tokens=tokens,
            )
            for name, (words, tokens) in counts.items()
        )

    vocabulary_sizes: ClassVar[tuple[int, ...]] = (10_000,)
    """9,999 words, `<unk>` among them, and `<eos>`."""

    def documents(self, files: CorpusFiles) -> Splits:
        return {
            name: (Reread(member_pieces, files, member),)
            for name, member in self.split_files.items()
        }
