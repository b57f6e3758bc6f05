"""Base class of published corpora: their files, tokenization and expected counts."""

import abc
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from txl_tf.data.corpora.archives import CorpusFiles, CorpusMember, open_corpus_files
from txl_tf.data.manifest import SplitManifest
from txl_tf.data.partial_download import PublishedFile
from txl_tf.data.text import Splits, split_at_lines
from txl_tf.errors import DataDamagedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpectedCounts:
    """Counts of one split, with the names of `SplitManifest`; `None` if not published."""

    split: str
    bytes: int | None = None
    characters: int | None = None
    words: int | None = None
    documents: int | None = None
    tokens: int | None = None


def _surprise(what: str, where: str) -> DataDamagedError:
    remedy = "Check that the text is the published one; results on it would not compare."
    return DataDamagedError(what, where=where, remedy=remedy)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerOptions:
    """Options that determine tokens and vocabulary of a published corpus.

    `kind` is `"bytes"`, `"characters"` or `"words"`. `add_eos` adds `eos_token` after each line,
    `add_double_eos` before and after it. The vocabulary has the special tokens, then the others of
    `counted_splits` by count.
    """

    kind: str
    special_tokens: tuple[str, ...] = ()
    eos_token: str | None = None
    unknown_token: str | None = None
    add_eos: bool = False
    add_double_eos: bool = False
    lower_case: bool = False
    counted_splits: tuple[str, ...] = ("train", "valid", "test")
    min_frequency: int = 1
    vocabulary_size: int | None = None


def member_pieces(files: CorpusFiles, member: CorpusMember) -> Iterator[bytes]:
    """Yields the text of a file in pieces cut by `split_at_lines`."""
    return split_at_lines(files.blocks(member))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus(abc.ABC):
    """Published corpus with the tokenization and counts of published results.

    Fields of a subclass are the user's choices. Its class attributes hold published values, from
    the official preparation of Transformer-XL and independent projects; `None` means that only the
    archive's checksum is known.
    """

    name: ClassVar[str]
    archive: ClassVar[PublishedFile]
    vocabulary_file: ClassVar[PublishedFile | None] = None

    @property
    @abc.abstractmethod
    def members(self) -> tuple[CorpusMember, ...]:
        """Required files of the archive."""

    @property
    @abc.abstractmethod
    def tokenizer_options(self) -> TokenizerOptions:
        """Tokenization of the official preparation."""

    @property
    @abc.abstractmethod
    def expected_counts(self) -> tuple[ExpectedCounts, ...]:
        """Expected counts of each split, in the order of the splits."""

    @property
    @abc.abstractmethod
    def vocabulary_sizes(self) -> tuple[int, ...]:
        """Accepted sizes of the vocabulary."""

    @abc.abstractmethod
    def documents(self, files: CorpusFiles) -> Splits:
        """Returns documents by split in the official order, which can be iterated repeatedly."""

    def splits(self, path: str, *, unpack_folder: str | None = None) -> Splits:
        """Opens an archive, unpacked folder or only file, and returns documents by split.

        Raises InputMissingError, DataDamagedError for other files than the published ones, or
        StorageError. A tar archive is unpacked, by default beside it.
        """
        return self.documents(open_corpus_files(path, self.archive, self.members, unpack_folder))

    def check_counts(
        self, splits: Iterable[SplitManifest], *, vocabulary_size: int | None = None
    ) -> None:
        """Raises DataDamagedError if the prepared counts differ from the published ones.

        `vocabulary_size` is given only for the tokenizer of this corpus; without it, vocabulary and
        tokens are not compared.
        """
        found = {split.name: split for split in splits}
        for counts in self.expected_counts:
            where = f"corpus {self.name}, split {counts.split}"
            if counts.split not in found:
                raise _surprise("The split is missing.", where)
            for unit in ("bytes", "characters", "words", "documents", "tokens"):
                wanted, actual = getattr(counts, unit), getattr(found[counts.split], unit)
                if wanted in (None, actual) or (unit == "tokens" and vocabulary_size is None):
                    continue
                raise _surprise(f"There must be {wanted} {unit}, but there are {actual}.", where)
        if vocabulary_size not in (None, *self.vocabulary_sizes):
            sizes = " or ".join(map(str, self.vocabulary_sizes))
            what = f"The vocabulary must have {sizes} tokens, but has {vocabulary_size}."
            raise _surprise(what, f"corpus {self.name}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilePerSplitCorpus(Corpus):
    """Corpus with one file per split."""

    split_files: ClassVar[Mapping[str, CorpusMember]]

    @property
    def members(self) -> tuple[CorpusMember, ...]:
        """Files of the splits."""
        return tuple(self.split_files.values())
