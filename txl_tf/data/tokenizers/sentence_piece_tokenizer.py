"""SentencePiece tokenizer and the trainer of its models."""

import functools
import io
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from txl_tf.data.text import split_at_lines
from txl_tf.data.tokenizers.tokenizer import (
    InvalidTextError,
    Tokenizer,
    decode_utf8,
    narrowest_token_dtype,
)
from txl_tf.imports import require_extra

if TYPE_CHECKING:
    from txl_tf.data.tokenizers.graph_tokenizers import GraphSentencePieceTokenizer


# SentencePiece writes spaces as U+2581, and could not tell the two apart.
BLOCK_CHARACTER = "\u2581"
# No character at all: Unicode reserves it for use within a program.
BLOCK_SUBSTITUTE = "\U0010fffe"
_MODEL_FILE = "vocabulary.model"


class SentencePieceTokenizer(Tokenizer):
    """Tokenizer of a SentencePiece model, BPE or unigram.

    Kudo and Richardson (2018); run by tensorflow-text, the same operation that
    an export has in its graph. With a model of `train_sentence_piece`,
    `decode(encode(text)) == text` for all text: white space and line ends are
    kept and rare characters are written as bytes. The one exception is refused:
    the noncharacter U+10FFFE. Lines are encoded by themselves, because no piece
    crosses a line end and a model that adds up scores would round differently.

    Args:
        model: bytes. The serialized model.

    Raises:
        ValueError: If the bytes are not a SentencePiece model.
    """

    kind = "sentencepiece"
    uses_tensorflow = True
    _definition = b"txl-tf tokenizer; kind sentencepiece; version 1\n"

    def __init__(self, model: bytes) -> None:
        self.model = model
        self.vocabulary_size, self.unknown_id = _size_and_unknown_id(model)
        self.token_dtype = narrowest_token_dtype(self.vocabulary_size)

    @classmethod
    def from_vocabulary_files(cls, files: Mapping[str, bytes]) -> Self:
        return cls(files[_MODEL_FILE])

    @property
    def vocabulary_files(self) -> Mapping[str, bytes]:
        """Names and contents of the files: the model in SentencePiece's own format."""
        return {_MODEL_FILE: self.model}

    def token_texts(self) -> list[bytes]:
        import tensorflow as tf
        import tensorflow_text

        pieces = tensorflow_text.SentencepieceTokenizer(model=self.model)
        return list(pieces.id_to_string(tf.range(self.vocabulary_size)).numpy())

    def encode_piece(self, text: bytes, begins_line: bool, ends_document: bool) -> np.ndarray:
        decode_utf8(text)
        place = text.find(BLOCK_SUBSTITUTE.encode())
        if place >= 0:
            reason = "The text has U+10FFFE, which is no character."
            raise InvalidTextError.at(reason, text, place)
        lines = [line + b"\n" for line in text.split(b"\n")]
        lines[-1] = lines[-1][:-1]
        return self._graph_tokenizer.tokenize_lines(lines).values.numpy().astype(self.token_dtype)

    def _decode(self, ids: np.ndarray) -> bytes:
        # Bytes that form no character become U+FFFD; `encode` gives no such ids.
        import tensorflow as tf

        row = tf.RaggedTensor.from_row_lengths(ids.astype(np.int32), np.array([len(ids)], np.int64))
        return self._graph_tokenizer.detokenize(row).numpy()[0]

    def graph_tokenizer(self) -> "GraphSentencePieceTokenizer":
        return self._graph_tokenizer

    @functools.cached_property
    def _graph_tokenizer(self) -> "GraphSentencePieceTokenizer":
        from txl_tf.data.tokenizers.graph_tokenizers import GraphSentencePieceTokenizer

        return GraphSentencePieceTokenizer(self.model)


def _size_and_unknown_id(model: bytes) -> tuple[int, int]:
    import tensorflow as tf
    import tensorflow_text

    try:
        pieces = tensorflow_text.SentencepieceTokenizer(model=model)
        return int(pieces.vocab_size()), int(pieces.string_to_id(BLOCK_SUBSTITUTE))
    except tf.errors.OpError as error:
        raise ValueError(
            f"`model` must be a SentencePiece model. Received: {len(model)} bytes"
        ) from error


# The trainer adds up in as many parts as it has threads, and the result shows it.
_NUM_THREADS = 2
# The trainer skips what is longer; the learned pieces are far shorter.
_MAX_LINE_BYTES = 4096
# The trainer takes no smaller sample.
_MIN_LINES = 100


def train_sentence_piece(
    pieces: Iterable[bytes],
    vocabulary_size: int,
    *,
    model_type: Literal["bpe", "unigram"] = "unigram",
    max_lines: int = 200_000,
    character_coverage: float = 0.9995,
) -> SentencePieceTokenizer:
    """Trains a SentencePiece model.

    The same text gives the same bytes, on any number of cores. The model keeps
    white space, normalises nothing, and writes characters that it has no piece
    for as bytes.

    Args:
        pieces: iterable of bytes. UTF-8 text, cut as `split_at_lines` cuts.
        vocabulary_size: int. Largest number of pieces: one for what cannot occur,
            256 bytes, the characters, and what is learned. A small text gives fewer.
        model_type: str. `"bpe"` (Sennrich et al. 2016) or `"unigram"` (Kudo
            2018). Defaults to `"unigram"`.
        max_lines: int. Lines to learn from; where there are more, as many are
            chosen at random, the same ones every time. Defaults to `200_000`.
        character_coverage: float in `(0, 1]`. Part of the text whose characters
            get a piece of their own. Defaults to `0.9995`.

    Raises:
        ValueError: If the text cannot give a vocabulary of that size.
        InvalidTextError: If the text is not UTF-8.
        UsageError: If the package `sentencepiece` is not installed.
    """
    if model_type not in ("bpe", "unigram"):
        raise ValueError(f"`model_type` must be 'bpe' or 'unigram'. Received: {model_type!r}")
    if max_lines <= _MIN_LINES:
        raise ValueError(f"`max_lines` must be more than {_MIN_LINES}. Received: {max_lines}")
    require_extra("sentencepiece", "sentencepiece", purpose="Training this tokenizer")
    import sentencepiece

    sentencepiece.set_random_generator_seed(0)
    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        rule = _rule_file(folder, "normalization", BLOCK_CHARACTER, BLOCK_SUBSTITUTE)
        inverse = _rule_file(folder, "denormalization", BLOCK_SUBSTITUTE, BLOCK_CHARACTER)
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_lines(pieces),
                model_writer=model,
                model_type=model_type,
                vocab_size=vocabulary_size,
                hard_vocab_limit=False,
                character_coverage=character_coverage,
                input_sentence_size=max_lines,
                shuffle_input_sentence=True,
                max_sentence_length=2 * _MAX_LINE_BYTES,
                num_threads=_NUM_THREADS,
                byte_fallback=True,
                normalization_rule_tsv=rule,
                denormalization_rule_tsv=inverse,
                add_dummy_prefix=False,
                remove_extra_whitespaces=False,
                allow_whitespace_only_pieces=True,
                unk_id=0,
                bos_id=-1,
                eos_id=-1,
                pad_id=-1,
                minloglevel=2,
            )
        except (RuntimeError, OSError) as error:
            if smallest := re.search(r"smaller than required_chars. \d+ vs (\d+)", str(error)):
                raise ValueError(
                    f"`vocabulary_size` must be at least {smallest[1]}: the 256 bytes, a token for "
                    f"what cannot occur, and the characters. Received: {vocabulary_size}"
                ) from error
            raise ValueError(
                f"The text does not give such a vocabulary: {' '.join(str(error).split())} "
                f"Received: vocabulary_size={vocabulary_size}"
            ) from error
    return SentencePieceTokenizer(_without_paths(model.getvalue()))


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    for piece in pieces:
        for line in decode_utf8(piece).split("\n"):
            # NUL is written as a byte, and the trainer does not take it.
            text = line.replace("\0", "")
            if len(text) < _MAX_LINE_BYTES // 4:
                if text:
                    yield text
            else:
                for part in split_at_lines([text.encode()], _MAX_LINE_BYTES):
                    yield part.decode()


def _rule_file(folder: str, name: str, source: str, target: str) -> str:
    path = os.path.join(folder, name)
    with open(path, "w", encoding="ascii") as file:
        file.write(f"{ord(source):X}\t{ord(target):X}\n")
    return path


def _without_paths(model: bytes) -> bytes:
    """Returns the model without the names of files, which differ, and the kind of the limit."""
    from sentencepiece import sentencepiece_model_pb2

    messages: Any = sentencepiece_model_pb2
    message = messages.ModelProto.FromString(model)
    message.normalizer_spec.ClearField("normalization_rule_tsv")
    message.denormalizer_spec.ClearField("normalization_rule_tsv")
    message.trainer_spec.ClearField("hard_vocab_limit")
    return message.SerializeToString(deterministic=True)
