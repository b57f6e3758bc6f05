"""Penn Treebank, in the form that language models are compared on."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from txl_tf.data.corpora.archives import CorpusFiles
from txl_tf.data.corpora.corpus import Corpus, ExpectedCounts, TokenizerOptions
from txl_tf.data.corpora.tar_unpacking import CorpusMember
from txl_tf.data.partial_download import PublishedFile
from txl_tf.data.text import split_at_lines


def _member(split: str, size_bytes: int, sha256: str) -> CorpusMember:
    return CorpusMember(
        path=f"simple-examples/data/ptb.{split}.txt",
        other_paths=(f"data/ptb.{split}.txt", f"ptb.{split}.txt", f"{split}.txt"),
        max_bytes=size_bytes,
        size_bytes=size_bytes,
        sha256=sha256,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PennTreebank(Corpus):
    """News of 1989 with 10,000 words: lower case, without punctuation, `N` for numbers.

    Every line ends with `<eos>`. A split is one document: where one report
    ends and the next begins, the files do not say.
    """

    name: ClassVar[str] = "penn_treebank"
    # Nobody is known to publish the SHA-256 of the archive; those of its files are.
    archive: ClassVar[PublishedFile] = PublishedFile(
        name="simple-examples.tgz",
        urls=("http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",),
        size_bytes=34_869_662,
    )
    split_files: ClassVar[Mapping[str, CorpusMember]] = {
        "train": _member(
            "train",
            5_101_618,
            "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
        ),
        "valid": _member(
            "valid",
            399_782,
            "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
        ),
        "test": _member(
            "test",
            449_945,
            "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
        ),
    }

    @property
    def members(self) -> tuple[CorpusMember, ...]:
        """The three files of the archive."""
        return tuple(self.split_files.values())

    @property
    def tokenizer_options(self) -> TokenizerOptions:
        """Words in lower case and line ends; the vocabulary is that of all three splits."""
        return TokenizerOptions(
            kind="words",
            special_tokens=("<eos>",),
            eos_token="<eos>",
            add_eos=True,
            lower_case=True,
        )

    @property
    def expected_counts(self) -> tuple[ExpectedCounts, ...]:
        """The sizes of the files; tokens are words and lines."""
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

    @property
    def vocabulary_sizes(self) -> tuple[int, ...]:
        """9,999 words, `<unk>` among them, and `<eos>`."""
        return (10_000,)

    def documents(self, files: CorpusFiles) -> Mapping[str, Iterable[Iterable[bytes]]]:
        """Makes the documents of the splits; see `Corpus`."""
        return {name: (_Pieces(files, member),) for name, member in self.split_files.items()}


class _Pieces:
    """The text of one file."""

    def __init__(self, files: CorpusFiles, member: CorpusMember) -> None:
        self._files = files
        self._member = member

    def __iter__(self) -> Iterator[bytes]:
        return split_at_lines(self._files.blocks(self._member))
