"""What WikiText-2 and WikiText-103 have in common."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from txl_tf.data.corpora.corpus import Corpus
from txl_tf.data.corpora.corpus_files import CorpusFiles
from txl_tf.data.corpora.corpus_member import CorpusMember
from txl_tf.data.corpora.wikitext_documents import wikitext_articles
from txl_tf.data.text_sources.text_pieces import text_pieces


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
        return wikitext_articles(text_pieces(self._files.blocks(self._member)))
