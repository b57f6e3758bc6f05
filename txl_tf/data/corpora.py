"""Published corpora with their tokenization and counts."""

import dataclasses
import functools
import io
import itertools
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from txl_tf.data.prepared_dataset import SplitManifest
from txl_tf.data.sources.archives import CorpusMember, unpacked_files
from txl_tf.data.sources.document_cuts import grouped_documents, line_pattern, marked_parts
from txl_tf.data.sources.downloads import PublishedFile
from txl_tf.data.sources.text_files import text_blocks
from txl_tf.data.text import Document, Reread, Splits, byte_range, split_at_lines
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule
from txl_tf.data.vocabulary_training import CharacterTraining, VocabularyTraining, WordTraining
from txl_tf.errors import DataDamagedError

SPLITS = ("train", "valid", "test")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus:
    """Published corpus with the tokenization and the counts of published results.

    The values come from the official preparation of Transformer-XL and from independent projects.
    `counts` has the published values of fields of `SplitManifest` by split. Numbers of tokens and
    `vocabulary_sizes` are valid only for `tokenizer`. `documents` turns the paths of `members` into
    documents by split, in the official order.
    """

    name: str
    archive: PublishedFile
    members: tuple[CorpusMember, ...]
    tokenizer: Tokenizer | VocabularyTraining
    counts: Mapping[str, Mapping[str, int]]
    vocabulary_sizes: tuple[int, ...]
    documents: Callable[[list[str]], Splits]

    def splits(self, path: str) -> Splits:
        """Opens the corpus at a path, and returns its documents by split.

        The path is the archive, a folder with the unpacked files, or the only file. Raises the
        errors of `unpacked_files`.
        """
        return self.documents(unpacked_files(path, self.archive, self.members))

    def check_counts(
        self,
        tokenizer: Tokenizer | VocabularyTraining,
        splits: Iterable[SplitManifest],
        vocabulary_size: int,
    ) -> None:
        """Raises DataDamagedError if the counts of a preparation differ from the published ones.

        The vocabulary and the numbers of tokens are compared only if `tokenizer` is the tokenizer
        of this corpus.
        """
        is_bytes = tokenizer.kind == self.tokenizer.kind == "bytes"
        is_official = is_bytes or tokenizer == self.tokenizer
        for split in splits:
            for unit, published_count in self.counts.get(split.name, {}).items():
                count = getattr(split, unit)
                if published_count != count and (unit != "tokens" or is_official):
                    raise _count_error(
                        f"The number of {unit} must be {published_count}, but is {count}.",
                        f"corpus {self.name}, split {split.name}",
                    )
        if is_official and vocabulary_size not in self.vocabulary_sizes:
            sizes = " or ".join(map(str, self.vocabulary_sizes))
            raise _count_error(
                f"The vocabulary must have {sizes} tokens, but has {vocabulary_size}.",
                f"corpus {self.name}",
            )


def _count_error(what: str, where: str) -> DataDamagedError:
    return DataDamagedError(
        what,
        where=where,
        remedy="Check that the text is the published one: results on another do not compare.",
    )


def _file_splits(read: Callable[[str], Iterator[Document]], paths: Sequence[str]) -> Splits:
    """Returns the documents of a corpus that has one file for each split."""
    return {name: Reread(read, path) for name, path in zip(SPLITS, paths, strict=True)}


def _whole(path: str) -> Iterator[Document]:
    yield split_at_lines(text_blocks(path))


def _cut_splits(read: Callable[..., Iterator[Document]], paths: Sequence[str]) -> Splits:
    """Returns the documents of a corpus in one file, whose last 10 % are valid and test."""
    (path,) = paths
    cuts = [os.path.getsize(path) * percent // 100 for percent in (0, 90, 95, 100)]
    ranges = zip(SPLITS, itertools.pairwise(cuts), strict=True)
    return {name: Reread(read, path, *bounds) for name, bounds in ranges}


def _hundred_megabytes(
    name: str,
    archive_bytes: int,
    archive_sha256: str,
    sha256: str,
    *,
    read: Callable[..., Iterator[Document]],
    **settings: Any,
) -> Corpus:
    archive, url = f"{name}.zip", f"http://mattmahoney.net/dc/{name}.zip"
    return Corpus(
        name=name,
        archive=PublishedFile(
            name=archive, url=url, size_bytes=archive_bytes, sha256=archive_sha256
        ),
        members=(CorpusMember(name=name, size_bytes=100_000_000, sha256=sha256),),
        documents=functools.partial(_cut_splits, read),
        **settings,
    )


def enwik8(newlines: str = "drop") -> Corpus:
    """Returns enwik8: 100 million bytes of Wikipedia in XML. A document is a page.

    The published results of Transformer-XL are on text without newlines, because the official
    script loses them (`newlines="drop"`). Other papers keep them (`"keep"`), so results of the two
    kinds cannot be compared. Valid and test begin within a page.
    """
    sizes = {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000}
    counts = {name: {"bytes": size, "tokens": size} for name, size in sizes.items()}
    drops = newlines == "drop"
    return _hundred_megabytes(
        "enwik8",
        36_445_475,
        "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
        "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
        tokenizer=ByteTokenizer(),
        # The sizes of the text without newlines are not published.
        counts={} if drops else counts,
        vocabulary_sizes=(256,),
        read=functools.partial(_pages, drops),
    )


def _pages(drops_newlines: bool, path: str, start: int, stop: int) -> Iterator[Document]:
    pieces = split_at_lines(byte_range(text_blocks(path), start, stop))
    for page in grouped_documents(marked_parts(pieces, line_pattern(b"  <page>"), keep_mark=True)):
        if drops_newlines:
            page = filter(None, (piece.replace(b"\n", b"") for piece in page))
        yield page


def text8() -> Corpus:
    """Returns text8, whose splits of 90, 5 and 5 million characters are one document each.

    As in the official script, spaces at the beginning and the end of a split are removed. The
    remaining numbers of characters are not published.
    """
    return _hundred_megabytes(
        "text8",
        31_344_016,
        "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
        "6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7",
        tokenizer=CharacterTraining(counted_splits=SPLITS),
        counts={name: {"documents": 1} for name in SPLITS},
        vocabulary_sizes=(27,),  # the letters and the space
        read=_stripped,
    )


def _stripped(path: str, start: int, stop: int) -> Iterator[Document]:
    yield split_at_lines([b"".join(byte_range(text_blocks(path), start, stop)).strip()])


def wikitext103() -> Corpus:
    """Returns WikiText-103: 103 million training tokens, a vocabulary of 267,735 words.

    The text is good and featured articles of Wikipedia, with `<unk>` in the place of rare words.
    Every line, also a blank one, ends with `<eos>`. A document is an article.
    """
    return _wikitext(
        "103",
        190_229_076,
        "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
        {
            "train": (None, None),
            "valid": (
                1_142_309,
                "9aee9f52d6e77de6c7751fc5e7c44287db3ec0eaf15477098acc6b93c1c4250b",
            ),
            "test": (1_281_077, "56db52eb157b1ab5c89646eef70510c1eca6e12a3bfdb99f0d6b05b4eacb75b9"),
        },
        tokenizer=_lines_of_words(unknown_token="<unk>", counted_splits=("train",)),
        counts={
            "train": {"words": 101_425_671, "tokens": 103_227_021},
            "valid": {"words": 213_886, "documents": 60, "tokens": 217_646},
            "test": {"words": 241_211, "documents": 60, "tokens": 245_569},
        },
        vocabulary_sizes=(267_735,),
    )


def wikitext2() -> Corpus:
    """Returns WikiText-2: two million training tokens, 33,278 words from all splits."""
    return _wikitext(
        "2",
        4_475_746,
        "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
        {"train": (None, None), "valid": (1_121_681, None), "test": (1_256_449, None)},
        tokenizer=_lines_of_words(),
        counts={
            "train": {"words": 2_051_910, "tokens": 2_088_628},
            "valid": {"words": 213_886, "tokens": 217_646},
            "test": {"words": 241_211, "tokens": 245_569},
        },
        vocabulary_sizes=(33_278,),
    )


def _wikitext(
    size: str,
    size_bytes: int,
    sha256: str,
    files: Mapping[str, tuple[int | None, str | None]],
    **settings: Any,
) -> Corpus:
    name = f"wikitext-{size}-v1.zip"
    url = f"https://wikitext.smerity.com/{name}"
    paths = {split: f"wiki.{split}.tokens" for split in files}
    return Corpus(
        name=f"wikitext{size}",
        archive=PublishedFile(name=name, url=url, size_bytes=size_bytes, sha256=sha256),
        members=tuple(
            CorpusMember(
                name=f"wikitext-{size}/{path}",
                other_paths=(path, f"{split}.txt"),
                size_bytes=files[split][0],
                sha256=files[split][1],
            )
            for split, path in paths.items()
        ),
        documents=functools.partial(_file_splits, _articles),
        **settings,
    )


def _lines_of_words(
    *,
    lower_case: bool = False,
    unknown_token: str | None = None,
    counted_splits: tuple[str, ...] = SPLITS,
) -> WordTraining:
    return WordTraining(
        rule=WordRule(add_eos=True, lower_case=lower_case),
        special_tokens=("<eos>",),
        unknown_token=unknown_token,
        counted_splits=counted_splits,
    )


def _articles(path: str) -> Iterator[Document]:
    return wikitext_articles(split_at_lines(text_blocks(path)))


_BLANK = b" \n"


def wikitext_articles(pieces: Iterable[bytes]) -> Iterator[tuple[bytes]]:
    """Cuts a WikiText file, in pieces of `split_at_lines`, into articles of one piece each.

    An article begins with the blank line before a title such as ` = Robert Boulter = `. Another
    blank line follows the title. Headings within an article have more than one `=` on each side.
    """
    # `io.BytesIO` ends lines only at LF.
    lines = (line for piece in pieces for line in io.BytesIO(piece))
    article: list[bytes] = []
    # The line after a title is needed to identify the title, so two lines wait in variables.
    before, title = next(lines, b""), next(lines, b"")
    for after in lines:
        if article and before == after == _BLANK and _is_title(title):
            yield (b"".join(article),)
            article = []
        article.append(before)
        before, title = title, after
    if rest := b"".join([*article, before, title]):
        yield (rest,)


def _is_title(line: bytes) -> bool:
    return line.startswith(b" = ") and line.endswith(b" = \n") and not line.startswith(b" = = ")


def penn_treebank() -> Corpus:
    """Returns the Penn Treebank: news of 1989, a vocabulary of 10,000 words.

    Words are in lower case, and `N` stands for numbers. Every line ends with `<eos>`. A split is
    one document, because the files do not mark where a report ends.
    """
    files = {
        "train": (5_101_618, "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
        "valid": (399_782, "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
        "test": (449_945, "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
    }
    counts = {
        "train": {"words": 887_521, "tokens": 929_589},
        "valid": {"words": 70_390, "tokens": 73_760},
        "test": {"words": 78_669, "tokens": 82_430},
    }
    return Corpus(
        name="penn_treebank",
        # The SHA-256 of each file is published, but no SHA-256 of the archive.
        archive=PublishedFile(
            name="simple-examples.tgz",
            url="http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
            size_bytes=34_869_662,
        ),
        members=tuple(
            CorpusMember(
                name=f"simple-examples/data/ptb.{split}.txt",
                other_paths=(f"data/ptb.{split}.txt", f"ptb.{split}.txt", f"{split}.txt"),
                size_bytes=size_bytes,
                sha256=sha256,
            )
            for split, (size_bytes, sha256) in files.items()
        ),
        tokenizer=_lines_of_words(lower_case=True),
        counts={
            name: {"bytes": files[name][0], "documents": 1, **each} for name, each in counts.items()
        },
        vocabulary_sizes=(10_000,),
        documents=functools.partial(_file_splits, _whole),
    )


_LM1B_ROOT = "1-billion-word-language-modeling-benchmark-r13output"
_LM1B = "monolingual.tokenized.shuffled"


def lm1b() -> Corpus:
    """Returns One Billion Word, with `<S>` before and after every sentence.

    A training file is a document. The 99 training files, and the sentences within each, are in a
    fixed random order: sentences are independent, but the files have them sorted by source. Valid
    and test are both the first of the 50 held-out files, in its own order, as in the official
    preparation. The vocabulary has the words that occur at least three times in train.
    """
    held_out = {"words": 153_583, "documents": 1, "tokens": 165_733}
    return Corpus(
        name="lm1b",
        archive=PublishedFile(
            name=f"{_LM1B_ROOT}.tar.gz",
            url=f"http://www.statmt.org/lm-benchmark/{_LM1B_ROOT}.tar.gz",
            size_bytes=1_792_209_805,
            sha256="01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
        ),
        members=(
            *(_lm1b_file(f"training-{_LM1B}/news.en-{i:05d}-of-00100") for i in range(1, 100)),
            _lm1b_file(f"heldout-{_LM1B}/news.en.heldout-00000-of-00050"),
        ),
        tokenizer=WordTraining(
            rule=WordRule(add_double_eos=True),
            special_tokens=("<S>", "<UNK>"),
            unknown_token="<UNK>",
            min_frequency=3,
        ),
        counts={
            "train": {"words": 768_648_884, "documents": 99, "tokens": 829_250_940},
            "valid": held_out,
            "test": held_out,
        },
        # The two published sizes count the sentence mark once or twice.
        vocabulary_sizes=(793_470, 793_471),
        documents=_sentence_splits,
    )


def _lm1b_file(path: str) -> CorpusMember:
    return CorpusMember(name=f"{_LM1B_ROOT}/{path}", other_paths=(path, path.rsplit("/", 1)[1]))


def _sentence_splits(paths: Sequence[str]) -> Splits:
    *training, held_out = paths
    valid = Reread(_whole, held_out)
    return {"train": Reread(_shuffled, training), "valid": valid, "test": valid}


def _shuffled(paths: Sequence[str]) -> Iterator[Iterator[bytes]]:
    """Yields each training file as a document with its sentences shuffled."""
    for index in _shuffled_order(len(paths), "0/0"):
        yield split_at_lines([b"".join(shuffled_lines(text_blocks(paths[index]), f"0/0/{index}"))])


def shuffled_lines(blocks: Iterable[bytes], seed: str) -> list[bytes]:
    """Reads lines into memory, and returns them in an order that the seed determines."""
    lines = b"".join(blocks).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [lines[index] + b"\n" for index in _shuffled_order(len(lines), seed)]


def _shuffled_order(count: int, seed: str) -> list[int]:
    # Python guarantees that `random()` gives the same numbers in all versions, but not that
    # `shuffle` gives the same order.
    generator = random.Random(seed)
    return sorted(range(count), key=[generator.random() for _ in range(count)].__getitem__)


CORPORA: Mapping[str, Callable[..., Corpus]] = {
    "enwik8": enwik8,
    "text8": text8,
    "wikitext2": wikitext2,
    "wikitext103": wikitext103,
    "lm1b": lm1b,
    "penn_treebank": penn_treebank,
}
"""Functions that return the published corpora, by name."""
