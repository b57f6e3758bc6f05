"""WikiText-2."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from txl_tf.data.corpora.corpus_member import CorpusMember
from txl_tf.data.corpora.expected_counts import ExpectedCounts
from txl_tf.data.corpora.tokenizer_options import TokenizerOptions
from txl_tf.data.corpora.wikitext import WikiText
from txl_tf.data.downloads.published_file import PublishedFile


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
        """What the paper and many users report; tokens are words and lines."""
        return (
            ExpectedCounts(split="train", words=2_051_910, tokens=2_088_628),
            ExpectedCounts(split="valid", words=213_886, tokens=217_646),
            ExpectedCounts(split="test", words=241_211, tokens=245_569),
        )

    @property
    def vocabulary_sizes(self) -> tuple[int, ...]:
        """The words of all three splits and `<eos>`."""
        return (33_278,)
