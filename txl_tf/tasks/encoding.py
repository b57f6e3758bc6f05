"""Examples as token ids: joined texts, with the tokens of words and answers.

Shape letters used in this module: E examples, C texts of an example, L positions of a text.
"""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterable, Sequence

import numpy as np

from txl_tf.config.experiment import TaskConfig, TaskKind
from txl_tf.data.tokenizers.tokenizer import InvalidTextError, Tokenizer
from txl_tf.errors import DataDamagedError, MismatchError
from txl_tf.tasks.examples import Example

_LABEL_TYPES = {"regression": np.float32, "choice": np.int32}
# White space belongs to the next word.
_WHITE_WORD = re.compile(r"\s*(\S+)")
# Punctuation is separate, so that answers can exclude it.
_WORD_OR_MARK = re.compile(r"\s*(\w+|[^\w\s])")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordPlaces:
    """First and last token of each word of a text, and its characters without white space.

    `stops` are exclusive; all are int vectors.
    """

    first_tokens: np.ndarray
    last_tokens: np.ndarray
    starts: np.ndarray
    stops: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedExamples:
    """Examples of a split as one stream of token ids with the offsets of their texts.

    `offsets` is int64 `(E * C + 1,)`, with C = `num_choices`; missing choices are empty. `targets`
    has `E` rows (see `TaskObjective`), and is `None` without labels. `words` is empty except for
    "span".
    """

    kind: TaskKind
    examples: Sequence[Example]
    token_ids: np.ndarray
    offsets: np.ndarray
    num_choices: int
    targets: np.ndarray | None
    words: Sequence[WordPlaces]

    @functools.cached_property
    def num_tokens(self) -> np.ndarray:
        """Tokens of each text, int64 `(E, C)`."""
        return np.diff(self.offsets).reshape(-1, self.num_choices)

    def padded_length(self, segment_length: int) -> int:
        """Returns the length of the longest text, rounded up to whole segments."""
        return -(-int(self.num_tokens.max()) // segment_length) * segment_length

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of tokens, offsets and targets."""
        digest = hashlib.sha256()
        for array in (self.token_ids, self.offsets, self.targets):
            if array is not None:
                digest.update(f"{array.dtype.str}{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


class ExampleEncoder:
    """Encoder of the examples of a task.

    A separator follows each text of an example; each choice gets a copy of the texts before it. The
    words of the passage of "span" are encoded one by one, so that each token belongs to one word.
    The question comes first, because a causal model must know it while it reads.
    """

    def __init__(self, task: TaskConfig, tokenizer: Tokenizer) -> None:
        self._task = task
        self._tokenizer = tokenizer
        encode = tokenizer.encode_piece
        self._ids_of_word = functools.cache(lambda word: encode(word.encode(), False, False))
        self._class_numbers = {label: i for i, label in enumerate(task.labels or ())}
        self._splits_marks = tokenizer.kind not in ("words", "wordpiece")

    def encode(self, examples: Sequence[Example]) -> EncodedExamples:
        """Encodes the examples of a split, one or more, either all labelled or all unlabelled.

        Raises DataDamagedError if a text cannot be encoded or has no token, MismatchError if a
        label is not one of the task's, or a required separator has no token.
        """
        self._check_separator(examples)
        num_choices = max(len(each.choices) for each in examples) or 1
        texts: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        words: list[WordPlaces] = []
        for example in examples:
            try:
                ids, places = self._encode_one(example)
            except InvalidTextError as error:
                raise DataDamagedError(
                    error.reason, where=example.where, remedy="Correct the record, or leave it out."
                ) from error
            if any(len(each) == 0 for each in ids):
                raise DataDamagedError(
                    "A text gives no tokens.", where=example.where, remedy="Leave the record out."
                )
            ids = [each[: self._task.max_tokens] for each in ids]
            target = self._target(example, len(ids[0]), places)
            if target is not None:
                targets.append(target)
            if places is not None:
                words.append(places)
            texts += ids + [ids[0][:0]] * (num_choices - len(ids))
        if targets and len(targets) != len(examples):
            raise DataDamagedError(
                "The record has no label, but other records of the split have labels.",
                where=next(each for each in examples if not each.is_labelled).where,
                remedy="Add the label or leave the record out.",
            )
        return EncodedExamples(
            kind=self._task.kind,
            examples=examples,
            token_ids=np.concatenate(texts),
            offsets=np.cumsum([0, *map(len, texts)], dtype=np.int64),
            num_choices=num_choices,
            targets=np.stack(targets) if targets else None,
            words=words,
        )

    def _encode_one(self, example: Example) -> tuple[list[np.ndarray], WordPlaces | None]:
        separator, encode = self._task.separator, self._tokenizer.encode
        if self._task.kind == "choice":
            before = "".join(text + separator for text in example.texts if text)
            return [encode(before + choice + separator) for choice in example.choices], None
        if self._task.kind == "span":
            question, passage = example.texts
            pattern = _WORD_OR_MARK if self._splits_marks else _WHITE_WORD
            ids, places = self._encode_words(question + separator, [*pattern.finditer(passage)])
            return [ids], places
        return [encode(separator.join(example.texts) + separator)], None

    def _encode_words(
        self, begin: str, words: Sequence[re.Match[str]]
    ) -> tuple[np.ndarray, WordPlaces]:
        """Encodes words with their places, after the text `begin`."""
        encode = self._tokenizer.encode_piece
        first = encode(begin.encode(), True, False)
        parts = [self._ids_of_word(word[0]) for word in words]
        last = encode(self._task.separator.encode(), False, True)
        counts = np.array([len(each) for each in parts], np.int64)
        ends = len(first) + np.cumsum(counts)
        # A word without tokens would share the place of its neighbours.
        is_there = counts > 0
        return np.concatenate([first, *parts, last]), WordPlaces(
            first_tokens=(ends - counts)[is_there],
            last_tokens=(ends - 1)[is_there],
            starts=np.array([word.start(1) for word in words], np.int64)[is_there],
            stops=np.array([word.end(1) for word in words], np.int64)[is_there],
        )

    def _target(
        self, example: Example, num_tokens: int, places: WordPlaces | None
    ) -> np.ndarray | None:
        if not example.is_labelled:
            return None
        if self._task.kind == "span":
            return _span_of(example, num_tokens, places)
        if self._task.kind in ("regression", "choice"):
            return np.array(example.label, _LABEL_TYPES[self._task.kind])
        if (label := str(example.label)) not in self._class_numbers:
            raise MismatchError(
                f"The label {label[:60]!r} is not one of the classes of the task.",
                where=example.where,
                remedy=f"The classes are: {', '.join(self._class_numbers)[:200]}.",
            )
        return np.array(self._class_numbers[label], np.int32)

    def _check_separator(self, examples: Sequence[Example]) -> None:
        needs_separator = self._task.kind in ("choice", "span")
        if not (needs_separator or any(len(each.texts) > 1 for each in examples)):
            return
        encode, separator = self._tokenizer.encode_piece, self._task.separator
        try:
            separator_ids = encode(separator.encode(), False, False).tolist()
            is_blank = not separator_ids or separator_ids == encode(b" ", False, False).tolist()
        except InvalidTextError:
            is_blank = True
        if is_blank:
            raise MismatchError(
                f"The separator {separator!r} has no token of its own in this vocabulary, so the "
                "model could not tell the texts of an example apart.",
                where=examples[0].where,
                remedy="Choose another separator, such as --set task.separator=' | '",
            )


def _span_of(example: Example, num_tokens: int, places: WordPlaces | None) -> np.ndarray:
    """Returns first and last token of the answer; the last token of the text without an answer."""
    assert places is not None
    nothing = np.array([num_tokens - 1] * 2, np.int32)
    if not example.answers:
        return nothing
    answer = example.answers[0]
    touched = np.flatnonzero(
        (places.stops > answer.start) & (places.starts < answer.start + len(answer.text))
    )
    if not len(touched) or places.last_tokens[touched[-1]] >= num_tokens - 1:
        return nothing
    return np.array([places.first_tokens[touched[0]], places.last_tokens[touched[-1]]], np.int32)


def fingerprint_of(splits: Iterable[EncodedExamples]) -> str:
    """Returns one SHA-256, in hexadecimal, of several splits."""
    return hashlib.sha256("".join(each.fingerprint for each in splits).encode()).hexdigest()
