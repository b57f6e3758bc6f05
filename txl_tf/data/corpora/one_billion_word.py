"""One Billion Word corpus, with its sentences shuffled reproducibly."""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from typing import ClassVar

import numpy as np

from txl_tf.data.corpora.archives import CorpusFiles, CorpusMember
from txl_tf.data.corpora.corpus import (
    Corpus,
    ExpectedCounts,
    TokenizerOptions,
    member_pieces,
)
from txl_tf.data.partial_download import PublishedFile
from txl_tf.data.text import Reread, Splits

# Steele, Lea and Flood (2014), "Fast splittable pseudorandom number
# generators": the constants of SplitMix64.
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)


def shuffled_order(count: int, *keys: int | str) -> np.ndarray:
    """Returns the numbers below `count` in an order determined by the keys, as an int64 vector.

    NumPy and Python guarantee the order of their generators for one version only, and prepared data
    must not depend on it.
    """
    digest = hashlib.sha256("/".join(map(str, keys)).encode()).digest()
    start = np.uint64(int.from_bytes(digest[:8], "big"))
    with np.errstate(over="ignore"):
        values = start + np.arange(1, count + 1, dtype=np.uint64) * _INCREMENT
        values = (values ^ (values >> np.uint64(30))) * _FIRST_FACTOR
        values = (values ^ (values >> np.uint64(27))) * _SECOND_FACTOR
        values ^= values >> np.uint64(31)
    return np.argsort(values, kind="stable")


def shuffled_lines(blocks: Iterable[bytes], *keys: int | str) -> list[bytes]:
    """Reads lines into memory and returns them in an order determined by the keys."""
    lines = b"".join(blocks).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [lines[index] + b"\n" for index in shuffled_order(len(lines), *keys)]


_ROOT = "1-billion-word-language-modeling-benchmark-r13output"
_MAX_SHARD_BYTES = 60_000_000
_GATHERED_LINES = 4096


def _member(folder: str, name: str) -> CorpusMember:
    return CorpusMember(
        path=f"{_ROOT}/{folder}/{name}",
        other_paths=(f"{folder}/{name}", name),
        max_bytes=_MAX_SHARD_BYTES,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneBillionWord(Corpus):
    """One Billion Word, with `<S>` before and after every sentence.

    Train is the 99 training files, each a document with its sentences shuffled. Each of
    `num_passes` has another order of files; `seed` determines both. Valid and test are both the
    first of the 50 held-out files, unshuffled, as in the official preparation. The vocabulary has
    the words that occur at least three times in train. Of its published sizes, 793,471 counts two
    sentence marks and 793,470 one.
    """

    seed: int = 0
    num_passes: int = 1

    name: ClassVar[str] = "lm1b"
    archive: ClassVar[PublishedFile] = PublishedFile(
        name=f"{_ROOT}.tar.gz",
        urls=(f"http://www.statmt.org/lm-benchmark/{_ROOT}.tar.gz",),
        size_bytes=1_792_209_805,
        sha256="01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
    )
    vocabulary_file: ClassVar[PublishedFile | None] = PublishedFile(
        name="1b_word_vocab.txt",
        urls=("https://github.com/rafaljozefowicz/lm/raw/master/1b_word_vocab.txt",),
    )
    training_files: ClassVar[tuple[CorpusMember, ...]] = tuple(
        _member("training-monolingual.tokenized.shuffled", f"news.en-{index:05d}-of-00100")
        for index in range(1, 100)
    )
    held_out_file: ClassVar[CorpusMember] = _member(
        "heldout-monolingual.tokenized.shuffled", "news.en.heldout-00000-of-00050"
    )

    def __post_init__(self) -> None:
        if self.num_passes < 1:
            raise ValueError(f"`num_passes` must be positive. Received: {self.num_passes}")

    @property
    def members(self) -> tuple[CorpusMember, ...]:
        """Training files and the first held-out file."""
        return (*self.training_files, self.held_out_file)

    tokenizer_options: ClassVar[TokenizerOptions] = TokenizerOptions(
        kind="words",
        special_tokens=("<S>", "<UNK>"),
        eos_token="<S>",
        unknown_token="<UNK>",
        add_double_eos=True,
        counted_splits=("train",),
        min_frequency=3,
    )
    """Words that are not rare, and a mark at both ends of a sentence."""

    @property
    def expected_counts(self) -> tuple[ExpectedCounts, ...]:
        """Counts by the authors of the corpus; tokens are words and two marks per sentence."""
        held_out = {"words": 153_583, "documents": 1, "tokens": 165_733}
        return (
            ExpectedCounts(
                split="train",
                words=768_648_884 * self.num_passes,
                documents=len(self.training_files) * self.num_passes,
                tokens=829_250_940 * self.num_passes,
            ),
            ExpectedCounts(split="valid", **held_out),
            ExpectedCounts(split="test", **held_out),
        )

    vocabulary_sizes: ClassVar[tuple[int, ...]] = (793_470, 793_471)
    """The published sizes."""

    def documents(self, files: CorpusFiles) -> Splits:
        held_out = (Reread(member_pieces, files, self.held_out_file),)
        train = Reread(_shuffled, files, self.training_files, self.seed, self.num_passes)
        return {"train": train, "valid": held_out, "test": held_out}


def _shuffled(
    files: CorpusFiles, members: tuple[CorpusMember, ...], seed: int, num_passes: int
) -> Iterator[Iterator[bytes]]:
    """Yields each training file as a document with its sentences shuffled."""
    for pass_number in range(num_passes):
        for index in map(int, shuffled_order(len(members), seed, pass_number)):
            yield _sentences(files.blocks(members[index]), seed, pass_number, index)


def _sentences(blocks: Iterable[bytes], *keys: int) -> Iterator[bytes]:
    lines = shuffled_lines(blocks, *keys)
    for start in range(0, len(lines), _GATHERED_LINES):
        yield b"".join(lines[start : start + _GATHERED_LINES])
