"""Encoding of examples as token ids, which follow one another in a stream.

Shape letters used in this module: E examples.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from txl_tf.config.task import TaskConfig
from txl_tf.data.tokenizers.tokenizer import InvalidTextError, Tokenizer
from txl_tf.errors import DataDamagedError, MismatchError
from txl_tf.tasks.examples import Example


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedExamples:
    """Examples of a split as one stream of token ids.

    `offsets`, int64 `(E + 1,)`, are the places in the stream where examples begin and end.
    `targets` has `E` rows (see `TaskObjective`), and is `None` without labels.
    """

    examples: Sequence[Example]
    token_ids: np.ndarray
    offsets: np.ndarray
    targets: np.ndarray | None

    @functools.cached_property
    def num_tokens(self) -> np.ndarray:
        """Tokens of each example, int64 `(E,)`."""
        return np.diff(self.offsets)

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


def encode_examples(
    task: TaskConfig, tokenizer: Tokenizer, examples: Sequence[Example]
) -> EncodedExamples:
    """Encodes the examples of a split, at least one; either all have labels or none has one.

    A separator follows each text of an example. Raises DataDamagedError if a text cannot be encoded
    or has no token, or if only some examples have labels. Raises MismatchError if a label is not a
    class of the task, or if examples have several texts and the separator has no token.
    """
    _check_separator(task, tokenizer, examples)
    texts: list[np.ndarray] = []
    for example in examples:
        try:
            ids = tokenizer.encode(task.separator.join(example.texts) + task.separator)
        except InvalidTextError as error:
            raise DataDamagedError(
                error.reason, where=example.where, remedy="Correct the record, or leave it out."
            ) from error
        if len(ids) == 0:
            raise DataDamagedError(
                "A text gives no tokens.", where=example.where, remedy="Leave the record out."
            )
        texts.append(ids[: task.max_tokens])
    return EncodedExamples(
        examples=examples,
        token_ids=np.concatenate(texts),
        offsets=np.cumsum([0, *map(len, texts)], dtype=np.int64),
        targets=_targets_of(task, examples),
    )


def _targets_of(task: TaskConfig, examples: Sequence[Example]) -> np.ndarray | None:
    """Returns the numbers of classes, int32, or the labels of a regression, float32."""
    without_label = [example for example in examples if example.label is None]
    if len(without_label) == len(examples):
        return None
    if without_label:
        raise DataDamagedError(
            "The record has no label, but other records of the split have labels.",
            where=without_label[0].where,
            remedy="Add the label or leave the record out.",
        )
    if task.labels is None:
        return np.array([example.label for example in examples], np.float32)
    numbers = {label: number for number, label in enumerate(task.labels)}
    targets = []
    for example in examples:
        if (label := str(example.label)) not in numbers:
            raise MismatchError(
                f"The label {label[:60]!r} is not one of the classes of the task.",
                where=example.where,
                remedy=f"The classes are: {', '.join(numbers)[:200]}.",
            )
        targets.append(numbers[label])
    return np.array(targets, np.int32)


def _check_separator(task: TaskConfig, tokenizer: Tokenizer, examples: Sequence[Example]) -> None:
    """Raises MismatchError if examples have several texts and the separator has no own token."""
    if all(len(example.texts) < 2 for example in examples):
        return
    encode, separator = tokenizer.encode_piece, task.separator
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


def fingerprint_of(splits: Iterable[EncodedExamples]) -> str:
    """Returns one SHA-256, in hexadecimal, of several splits."""
    return hashlib.sha256("".join(each.fingerprint for each in splits).encode()).hexdigest()
