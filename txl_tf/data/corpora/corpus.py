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
    """The counts of one split, as in `SplitManifest`; `None` where nobody has published one."""

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
    """Options that decide the tokens and the vocabulary of a published corpus.

    A line is split at white space into words, or into its characters or bytes;
    lines follow each other without a token for the line end, unless `add_eos`
    or `add_double_eos` says otherwise. The vocabulary has the special tokens
    first and then what was counted, by count.

    Args:
        kind: str. `"bytes"`, `"characters"` or `"words"`.
        special_tokens: tuple of str. Tokens that have the first ids.
        eos_token: optional str. The token for the end of a line.
        unknown_token: optional str. The token for words outside of the
            vocabulary. `None` where there can be none.
        add_eos: bool. Whether `eos_token` follows every line, an empty one too.
        add_double_eos: bool. Whether `eos_token` comes before and after every
            line.
        lower_case: bool. Whether words are made lower case.
        counted_splits: tuple of str. The splits that the vocabulary is of.
        min_frequency: int. What occurs less often is not in the vocabulary.
        vocabulary_size: optional int. Largest size of the vocabulary.
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
    """Yields the text of a file in pieces of whole lines; see `split_at_lines`."""
    return split_at_lines(files.blocks(member))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus(abc.ABC):
    """Published corpus with the tokenization and counts that published results use.

    A subclass is a frozen dataclass whose fields are the choices there are. Its
    class attributes are what was published, taken over from the official
    preparation of Transformer-XL and from what several independent projects
    state; where no such number exists, it is `None` and the sum of the archive
    answers for it.

    Attributes:
        name: str. The name for the command line.
        archive: `PublishedFile`. The archive that is downloaded.
        vocabulary_file: optional `PublishedFile`. The published vocabulary, for
            the one corpus that has a file of it.
    """

    name: ClassVar[str]
    archive: ClassVar[PublishedFile]
    vocabulary_file: ClassVar[PublishedFile | None] = None

    @property
    @abc.abstractmethod
    def members(self) -> tuple[CorpusMember, ...]:
        """The files of the archive that are needed."""

    @property
    @abc.abstractmethod
    def tokenizer_options(self) -> TokenizerOptions:
        """Returns the tokenization of the official preparation."""

    @property
    @abc.abstractmethod
    def expected_counts(self) -> tuple[ExpectedCounts, ...]:
        """Returns the expected counts of each split, in the order of the splits."""

    @property
    @abc.abstractmethod
    def vocabulary_sizes(self) -> tuple[int, ...]:
        """Returns the accepted sizes of the vocabulary."""

    @abc.abstractmethod
    def documents(self, files: CorpusFiles) -> Splits:
        """Makes the documents of the splits.

        Returns:
            Dict of split name to documents, in the official order; they can be
            iterated any number of times.
        """

    def splits(self, path: str, *, unpack_folder: str | None = None) -> Splits:
        """Opens the corpus and gives its splits.

        Args:
            path: str. The archive, a folder with its unpacked files, or the
                only file of a corpus that has one.
            unpack_folder: optional str. Where a tar archive is unpacked; by
                default beside it. A zip archive is not unpacked.

        Raises:
            InputMissingError: If path or files are missing.
            DataDamagedError: If they are not the published ones.
            StorageError: If they cannot be read.
        """
        return self.documents(open_corpus_files(path, self.archive, self.members, unpack_folder))

    def check_counts(
        self, splits: Iterable[SplitManifest], *, vocabulary_size: int | None = None
    ) -> None:
        """Compares what was prepared with what was published.

        Args:
            splits: iterable of `SplitManifest`. What was prepared.
            vocabulary_size: optional int. Size of the vocabulary, if the
                tokenizer was made with the options of this corpus. With another
                tokenizer, vocabulary and tokens cannot be compared.

        Raises:
            DataDamagedError: If a count is not as it must be.
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
    """Corpus with one file for every split.

    Attributes:
        split_files: mapping of split name to `CorpusMember`.
    """

    split_files: ClassVar[Mapping[str, CorpusMember]]

    @property
    def members(self) -> tuple[CorpusMember, ...]:
        """The files of the splits."""
        return tuple(self.split_files.values())
