"""Tokens of a prompt, text of tokens that are written, and the stop texts that it ends before."""

import contextlib
import itertools
import logging
from collections.abc import Sequence

import numpy as np

from txl_tf.data.tokenizers.tokenizer import InvalidTextError, Tokenizer, checked_token_ids
from txl_tf.errors import UsageError

# The text of a token depends only on a few tokens before it.
_CONTEXT_TOKENS = 64
_MAX_SHOWN_WORDS = 8
_LOGGER = logging.getLogger(__name__)


def prompt_tokens(tokenizer: Tokenizer, prompt: str | np.ndarray) -> np.ndarray:
    """Encodes a prompt as an int32 vector; UsageError if that is impossible or gives no token.

    Token ids are returned after a check. A line that the prompt does not end has no token for its
    end.
    """
    if isinstance(prompt, np.ndarray):
        return checked_token_ids(prompt, tokenizer.vocabulary_size).astype(np.int32)
    where = f"prompt {prompt[:80]!a}"
    try:
        ids = tokenizer.encode(prompt, ends_document=False)
    except InvalidTextError as error:
        raise UsageError(error.reason, where=where) from error
    except UnicodeEncodeError as error:
        raise UsageError("The prompt is not valid UTF-8.", where=where) from error
    if not len(ids):
        raise UsageError("The prompt has no tokens.", where=where, remedy="Give at least a word.")
    num_unknown = int(np.sum(ids == tokenizer.unknown_id))
    if num_unknown:
        words = (
            word
            for word in dict.fromkeys(prompt.split())
            if tokenizer.unknown_id in tokenizer.encode_piece(word.encode(), True, False)
        )
        word_list = ", ".join(itertools.islice(words, _MAX_SHOWN_WORDS))
        _LOGGER.warning(
            "%d of %d tokens of the prompt are unknown to the model: %s",
            num_unknown,
            len(ids),
            word_list,
        )
    return ids.astype(np.int32)


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Returns the end of a text: where the stop text begins that is complete first, or `None`.

    Of several that are complete at the same place, it is the longest. Every place that writes
    text ends it by this rule.
    """
    matches = ((text.find(stop), len(stop)) for stop in stops)
    ends = [(place + length, place) for place, length in matches if place >= 0]
    return min(ends)[1] if ends else None


def text_until(
    tokenizer: Tokenizer, prompt_ids: np.ndarray, row: np.ndarray, stops: Sequence[str]
) -> str:
    """Decodes the tokens after a prompt, and cuts their text before the first stop text."""
    text = tokenizer.decode_after(prompt_ids, row)
    return text[: first_stop(text, stops)]


def tokens_until(
    tokenizer: Tokenizer, prompt_ids: np.ndarray, row: np.ndarray, stops: Sequence[str]
) -> np.ndarray:
    """Returns those tokens after a prompt whose text ends before the first stop text."""
    end = first_stop(tokenizer.decode_after(prompt_ids, row), stops)
    count = len(row)
    while end is not None and len(tokenizer.decode_after(prompt_ids, row[:count])) > end:
        count -= 1
    return row[:count]


def has_new_stop(
    tokenizer: Tokenizer,
    prompt_ids: np.ndarray,
    row: np.ndarray,
    num_new: int,
    stops: Sequence[str],
) -> bool:
    """True if one of the newest tokens after a prompt completes a stop text."""
    # A token has at least a byte.
    count = num_new + max(len(stop.encode()) for stop in stops)
    earlier = np.concatenate([prompt_ids[-_CONTEXT_TOKENS:], row[:-count]])[-_CONTEXT_TOKENS:]
    return first_stop(tokenizer.decode_after(earlier, row[-count:]), stops) is not None


class TextPieces:
    """Text of tokens that come one at a time, up to the first stop text.

    `earlier_ids` are tokens whose text is known. `is_over` is true after a stop text.
    `num_characters` is the length of the text, without a stop text, and `offset` the place of the
    newest token in it. Tokens that share a character have the same place.
    """

    def __init__(
        self, tokenizer: Tokenizer, earlier_ids: np.ndarray, stop_texts: Sequence[str] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_texts = stop_texts
        self._written = np.zeros((0,), np.int32)  # before the newest tokens
        self._num_before = self.num_characters = self.offset = 0
        self.is_over = False
        self._begin(earlier_ids[-_CONTEXT_TOKENS:])

    def _begin(self, earlier_ids: np.ndarray) -> None:
        self._ids, self._num_earlier = earlier_ids, len(earlier_ids)
        self._num_known = len(self._tokenizer.decode(earlier_ids))
        self._text, self._num_shown = "", 0

    @property
    def newest_ids(self) -> np.ndarray:
        """The newest tokens, enough to decode the next one."""
        return self._ids[-_CONTEXT_TOKENS:]

    def add(self, token_id: int) -> str:
        """Adds a token and returns the text that later tokens cannot change."""
        self._ids = np.append(self._ids, np.int32(token_id))
        before, text = self._text, self._decode(self._ids)
        if text != before:
            place = len(before)
            while not text.startswith(before[:place]):
                place -= 1  # the token completes a character
            self.offset = self._num_before + place
        certain = self._certain(text)
        piece = text[self._num_shown : certain]
        self._text, self._num_shown = text, max(self._num_shown, certain)
        self.num_characters = self._num_before + (certain if self.is_over else len(text))
        is_long = len(self._ids) >= 2 * _CONTEXT_TOKENS
        if is_long and certain == len(text) and not self._tokenizer.reads_lines:
            # Nothing is held back: drop earlier tokens, so that decoding stays cheap.
            self._num_before = self.num_characters
            self._written = np.append(self._written, self._ids[self._num_earlier :])
            self._begin(self.newest_ids)
        return piece

    def rest(self) -> str:
        """Returns the text that was held back for another token."""
        return "" if self.is_over else self._text[self._num_shown :]

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Returns the text that each token would add; bytes that are not UTF-8 are escaped."""
        before, texts = self._tokenizer.decode_bytes(self._ids), []
        for token_id in token_ids:
            after = self._tokenizer.decode_bytes(np.append(self._ids, token_id))
            # A token that changes the text before it is decoded alone.
            is_added = after.startswith(before)
            text = after[len(before) :] if is_added else self._tokenizer.decode_bytes([token_id])
            texts.append(text.decode("utf-8", errors="backslashreplace"))
        return texts

    def kept_ids(self) -> np.ndarray:
        """Returns the tokens of the text, which end before a stop text.

        A token with the last characters of the text and the first of the stop text is replaced by
        tokens of those last characters, if the tokenizer has such.
        """
        earlier, new = np.split(self._ids, [self._num_earlier])
        token_ids = tokens_until(self._tokenizer, earlier, new, self._stop_texts)
        end = first_stop(self._text, self._stop_texts)
        rest = self._text[len(self._decode(np.append(earlier, token_ids))) : end]
        with contextlib.suppress(InvalidTextError):
            ids = np.append(token_ids, self._tokenizer.encode(rest, ends_document=False))
            if self._decode(np.append(earlier, ids)) == self._text[:end]:
                token_ids = ids
        return np.append(self._written, token_ids).astype(np.int32)

    def _decode(self, token_ids: np.ndarray) -> str:
        """Returns the text that tokens add to the earlier ones among them."""
        return self._tokenizer.readable(self._tokenizer.decode(token_ids)[self._num_known :])

    def _certain(self, text: str) -> int:
        """Returns the number of characters that later tokens cannot change, up to a stop text.

        The beginning of a stop text at the end is not counted. Sets `is_over` after a stop text.
        """
        end = first_stop(text, self._stop_texts)
        if end is not None:
            self.is_over = True
            return end
        certain = text[: self._tokenizer.num_certain(text)]
        stop_starts = [
            len(certain) - length
            for stop in self._stop_texts
            for length in range(1, len(stop))
            if certain.endswith(stop[:length])
        ]
        return min([len(certain), *stop_starts])
