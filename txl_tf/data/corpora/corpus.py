"""What every published corpus says of itself and can do."""

import abc
import dataclasses
from collections.abc import Iterable, Mapping
from typing import ClassVar

from txl_tf.data.corpora.corpus_files import CorpusFiles, open_corpus_files
from txl_tf.data.corpora.corpus_member import CorpusMember
from txl_tf.data.corpora.expected_counts import ExpectedCounts, check_expected_counts
from txl_tf.data.corpora.tokenizer_options import TokenizerOptions
from txl_tf.data.downloads.published_file import PublishedFile
from txl_tf.data.preparation import Document
from txl_tf.data.split_manifest import SplitManifest
from txl_tf.errors import DataDamagedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus(abc.ABC):
    """A published data set with the conventions that published numbers follow.

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
        """How the official preparation makes tokens of the text."""

    @property
    @abc.abstractmethod
    def expected_counts(self) -> tuple[ExpectedCounts, ...]:
        """What the splits must come to, in the order of the splits."""

    @property
    @abc.abstractmethod
    def vocabulary_sizes(self) -> tuple[int, ...]:
        """The sizes of the vocabulary that are right; one, or the published ones."""

    @abc.abstractmethod
    def documents(self, files: CorpusFiles) -> Mapping[str, Iterable[Document]]:
        """Makes the documents of the splits.

        Args:
            files: `CorpusFiles`. The opened files of the corpus.

        Returns:
            Dict of split name to documents, in the official order; they can be
            iterated any number of times.
        """

    def splits(
        self, path: str, *, unpack_folder: str | None = None
    ) -> Mapping[str, Iterable[Document]]:
        """Opens the corpus and gives its splits.

        Args:
            path: str. The archive, a folder with its unpacked files, or the
                only file of a corpus that has one.
            unpack_folder: optional str. Where a tar archive is unpacked; by
                default beside it. A zip archive is not unpacked.

        Returns:
            Dict of split name to documents.

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
        check_expected_counts(
            self.name, self.expected_counts, splits, with_tokens=vocabulary_size is not None
        )
        if vocabulary_size not in (None, *self.vocabulary_sizes):
            sizes = " or ".join(map(str, self.vocabulary_sizes))
            raise DataDamagedError(
                f"The vocabulary must have {sizes} tokens, but has {vocabulary_size}.",
                where=f"corpus {self.name}",
                remedy="Check that the text is the published one; results would not compare.",
            )
