"""WikiText-103."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from txl_tf.data.corpora.corpus_member import CorpusMember
from txl_tf.data.corpora.expected_counts import ExpectedCounts
from txl_tf.data.corpora.tokenizer_options import TokenizerOptions
from txl_tf.data.corpora.wikitext import WikiText
from txl_tf.data.downloads.published_file import PublishedFile


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
        """What the paper and many users report; tokens are words and lines."""
        return (
            ExpectedCounts(split="train", words=101_425_671, tokens=103_227_021),
            ExpectedCounts(split="valid", words=213_886, documents=60, tokens=217_646),
            ExpectedCounts(split="test", words=241_211, documents=60, tokens=245_569),
        )

    @property
    def vocabulary_sizes(self) -> tuple[int, ...]:
        """The words of the train split and `<eos>`."""
        return (267_735,)
