"""Passkey documents: a key in a long text, and a question for it some distance later.

Shape letters used in this module: B documents, K keys to choose from, A tokens of an answer, P
tokens before it, T segment length.
"""

import dataclasses
import functools
import itertools
import math
import re
import string
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np

Encode = Callable[[str], np.ndarray]

KEY = "KEY"
"""Place of the key in a sentence."""

_MAX_KEYS = 2**31 - 1
_PLACES = {"A": string.ascii_uppercase, "a": string.ascii_lowercase, "0": string.digits}
_AT_KEY = re.compile(rf"(\s*){KEY}")


class KeyPattern(Sequence[str]):
    """All keys of a pattern, in order.

    Args:
        pattern: str. `A` stands for any capital letter, `a` for any small one and
            `0` for any digit. Everything else stands for itself.

    Raises:
        ValueError: If there are more keys than an int32 counts.

    Example:
    ```python
    KeyPattern("A0")[259]  # "Z9"
    ```
    """

    def __init__(self, pattern: str) -> None:
        self._choices = [_PLACES.get(character, character) for character in pattern]
        self._length = math.prod(map(len, self._choices))
        if self._length > _MAX_KEYS:
            raise ValueError(
                f"`pattern` must have at most {_MAX_KEYS:,} keys. Received: {pattern[:80]!r}"
            )

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[each] for each in range(self._length)[index]]
        # Raises IndexError, which also ends an iteration.
        rest = range(self._length)[index]
        key = ""
        for choices in reversed(self._choices):
            rest, place = divmod(rest, len(choices))
            key = choices[place] + key
        return key


@dataclasses.dataclass(frozen=True, kw_only=True)
class PasskeySentences:
    """The sentence that tells a key and the one that asks for it, around the key.

    White space before the key belongs to the key, as it does in most vocabularies.
    """

    before: str
    """Beginning of the statement, up to the key."""
    space: str
    """White space before the key of the statement."""
    after: str
    """End of the statement."""
    question: str
    """Question, up to the answer."""
    answer_space: str
    """White space before the answer."""

    @classmethod
    def parse(cls, statement: str, question: str) -> Self:
        """Reads two sentences, each with `KEY` in the place of the key.

        What follows the key in the question has no influence and is left out. A
        space is added before each sentence, because it stands in a text.

        Raises:
            ValueError: If a sentence does not have `KEY` once, or nothing before it.
        """
        for name, sentence in (("statement", statement), ("question", question)):
            if sentence.count(KEY) != 1 or not sentence.partition(KEY)[0].strip():
                raise ValueError(
                    f"`{name}` must have {KEY} once, and words before it. Received: {sentence!r}"
                )
        before, space, after = _AT_KEY.split(statement)
        asked, answer_space, _ = _AT_KEY.split(question)
        return cls(
            before=f" {before.lstrip()}",
            space=space,
            after=after,
            question=f" {asked.lstrip()}",
            answer_space=answer_space,
        )


class PasskeyDocument(NamedTuple):
    """A document up to the answer, and the answers to choose from.

    Attributes:
        prompt: int vector `(P,)`.
        answers: list of `K` int vectors; the first is the right one.
        key_distance_tokens: int. From the first token of the key to that of the answer.
    """

    prompt: np.ndarray
    answers: list[np.ndarray]
    key_distance_tokens: int


@dataclasses.dataclass(frozen=True)
class PasskeyDocuments:
    """Passkey documents by number, seeded.

    The filler is one stream in which the statement stands; the question follows it.
    A document of some number has the same keys and the same question whatever
    its distance is, so that distances are compared on equal terms.

    Args:
        encode: function of a text that returns its token ids. Every part is encoded
            alone, so that no token crosses the bounds of a key.
        sentences: `PasskeySentences`.
        keys: sequence of str.
        filler: int vector of token ids. It is repeated where it is too short; where it
            is longer than needed, each document has another part of it.
        num_choices: int. `K`, at most as many as there are keys.
        seed: int.

    Raises:
        ValueError: If there is no filler, or there are too few keys.

    References:
     - [Mohtashami and Jaggi, 2023](https://arxiv.org/abs/2305.16300)
    """

    encode: Encode
    sentences: PasskeySentences
    keys: Sequence[str]
    filler: np.ndarray
    _: dataclasses.KW_ONLY
    num_choices: int
    seed: int

    def __post_init__(self) -> None:
        if not len(self.filler):
            raise ValueError("`filler` must have a token. Received: none")
        if not 1 <= self.num_choices <= len(self.keys):
            raise ValueError(
                f"`num_choices` must be from 1 to the {len(self.keys)} keys. "
                f"Received: num_choices={self.num_choices}"
            )

    @functools.cached_property
    def _before(self) -> np.ndarray:
        return self.encode(self.sentences.before)

    @functools.cached_property
    def _after(self) -> np.ndarray:
        return self.encode(self.sentences.after) if self.sentences.after else self._before[:0]

    @functools.cached_property
    def _question(self) -> np.ndarray:
        return self.encode(self.sentences.question)

    def document(self, number: int, distance_tokens: int, num_tokens: int) -> PasskeyDocument:
        """Makes a document.

        Args:
            number: int. Decides keys and filler, with the seed.
            distance_tokens: int. Filler between statement and question.
            num_tokens: int. `P`. Filler before the statement makes up for the rest.

        Raises:
            ValueError: If it is longer than that.
        """
        random = np.random.default_rng([self.seed, number])
        chosen = self._draw(random)
        key = self.encode(self.sentences.space + chosen[0])
        between = [self._before, key, self._after], [self._question]
        fixed = sum(map(len, itertools.chain(*between)))
        lead = num_tokens - fixed - distance_tokens
        if lead < 0:
            raise ValueError(
                f"`num_tokens` must be at least {num_tokens - lead}. Received: {num_tokens}"
            )
        filler = self._stretch(random, lead + distance_tokens)
        parts = [filler[:lead], *between[0], filler[lead:], *between[1]]
        answers = [self.encode(self.sentences.answer_space + each) for each in chosen]
        # The key's own tokens count, so that the distance is that of attention.
        distance = len(key) + len(self._after) + distance_tokens + len(self._question)
        return PasskeyDocument(np.concatenate(parts).astype(np.int32), answers, distance)

    def fixed_tokens(self, num_documents: int) -> int:
        """Tokens of the longest statement, question and answer of the first documents."""
        sentences = len(self._before) + len(self._after) + len(self._question)
        return sentences + 2 * self.longest_answer(num_documents)

    def longest_answer(self, num_documents: int) -> int:
        """Tokens of the longest key of the first documents, `A`."""
        spaces = {self.sentences.space, self.sentences.answer_space}
        drawn = (
            space + key
            for number in range(num_documents)
            for key in self._draw(np.random.default_rng([self.seed, number]))
            for space in spaces
        )
        return max(len(self.encode(text)) for text in drawn)

    def _draw(self, random: np.random.Generator) -> list[str]:
        indices = random.choice(len(self.keys), self.num_choices, replace=False)
        return [self.keys[int(index)] for index in indices]

    def _stretch(self, random: np.random.Generator, num_tokens: int) -> np.ndarray:
        """Returns consecutive tokens of the filler; of a short one those that end with it."""
        length = len(self.filler)
        stop = length
        if length > num_tokens:
            stop = int(random.integers(num_tokens, length + 1))
        return self.filler[np.arange(stop - num_tokens, stop) % length]


def training_texts(
    documents: PasskeyDocuments,
    num_documents: int,
    distances: Sequence[int],
    segment_length: int,
    seed: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields documents to learn from, in the form of those that a model is probed with.

    The distance is drawn from those given. The filler before the statement is up to
    two segments, and longer where the distance is shorter: otherwise no key near the
    question would have a long text before it, as it has in a probe.

    Args:
        documents: `PasskeyDocuments`.
        num_documents: int.
        distances: sequence of int. Segments between statement and question.
        segment_length: int. `T`.
        seed: int.

    Yields:
        Tuples of the tokens before the answer and those of the answer.
    """
    random = np.random.default_rng(seed)
    fixed_tokens = documents.fixed_tokens(num_documents)
    for number in range(num_documents):
        distance = segment_length * int(random.choice(distances))
        most = segment_length * (2 + max(distances)) - distance
        lead = int(random.integers(most))
        made = documents.document(number, distance, fixed_tokens + lead + distance)
        yield made.prompt, made.answers[0]
