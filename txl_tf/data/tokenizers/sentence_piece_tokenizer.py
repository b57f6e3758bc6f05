"""SentencePiece tokenizer and the trainer of its models."""

import functools
import io
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Self

import numpy as np

from txl_tf.data.text import split_at_lines
from txl_tf.data.tokenizers.tokenizer import (
    InvalidTextError,
    Tokenizer,
    decode_utf8,
    narrowest_token_dtype,
)
from txl_tf.imports import require_extra, tensorflow_text
from txl_tf.imports import tensorflow as tf

# SentencePiece writes spaces as U+2581, so U+2581 itself is substituted.
BLOCK_CHARACTER = "\u2581"
# A noncharacter, which Unicode reserves for internal use of programs.
BLOCK_SUBSTITUTE = "\U0010fffe"
_MODEL_FILE = "vocabulary.model"


class SentencePieceTokenizer(Tokenizer):
    """Tokenizer of a serialized SentencePiece model, BPE or unigram (Kudo and Richardson 2018).

    It runs the tensorflow-text operation that exports contain. With a model of
    `train_sentence_piece`, `decode(encode(text)) == text` for all text except U+10FFFE, which is
    refused. Lines are encoded separately: no piece crosses a line end, and longer sums of scores
    would round differently. Raises ValueError if the bytes are no model.
    """

    kind = "sentencepiece"
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
        """Names and contents of the files: the serialized SentencePiece model."""
        return {_MODEL_FILE: self.model}

    def token_texts(self) -> list[bytes]:
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
        return self.operations[0](lines).values.numpy().astype(self.token_dtype)

    def _decode(self, ids: np.ndarray) -> bytes:
        # Invalid byte sequences become U+FFFD; `encode` does not return such ids.
        row = tf.RaggedTensor.from_row_lengths(ids.astype(np.int32), np.array([len(ids)], np.int64))
        return self.operations[1](row).numpy()[0]

    @functools.cached_property
    def operations(self) -> tuple[Any, Any]:
        """Graph functions of UTF-8 lines to int32 ragged ids, without checks, and back."""

        def operation() -> tensorflow_text.SentencepieceTokenizer:
            # Created within each function and never kept: the operation that loads the model owns
            # it, and TensorFlow drops operations outside functions when the random seed is set.
            return tensorflow_text.SentencepieceTokenizer(model=self.model, out_type=tf.int32)

        lines = tf.TensorSpec([None], tf.string)
        ids = tf.RaggedTensorSpec([None, None], tf.int32, ragged_rank=1)
        return (
            tf.function(lambda lines: operation().tokenize(lines), [lines], autograph=False),
            tf.function(lambda ids: operation().detokenize(ids), [ids], autograph=False),
        )


def _size_and_unknown_id(model: bytes) -> tuple[int, int]:
    try:
        pieces = tensorflow_text.SentencepieceTokenizer(model=model)
        return int(pieces.vocab_size()), int(pieces.string_to_id(BLOCK_SUBSTITUTE))
    except tf.errors.OpError as error:
        raise ValueError(
            f"`model` must be a SentencePiece model. Received: {len(model)} bytes"
        ) from error


# The number of threads determines the order of summation, and so the result.
_NUM_THREADS = 2
# The trainer skips longer lines; the learned pieces are far shorter.
_MAX_LINE_BYTES = 4096


def train_sentence_piece(
    pieces: Iterable[bytes],
    vocabulary_size: int,
    *,
    model_type: Literal["bpe", "unigram"] = "unigram",
    max_lines: int = 200_000,
) -> SentencePieceTokenizer:
    """Trains a SentencePiece model; the same text gives the same bytes on any number of cores.

    The model does not normalise text. It has one piece that cannot occur, 256 for bytes, and
    characters that cover 99.95 % of the text, before learned pieces; a small text
    gives fewer than `vocabulary_size`. At most `max_lines` lines, sampled with a fixed seed, are
    used. Raises ValueError for an impossible size, InvalidTextError, or UsageError without the
    package `sentencepiece`.
    """
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
                character_coverage=0.9995,
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
                    f"`vocabulary_size` must be at least {smallest[1]}, for the unknown token, the "
                    f"bytes and the characters. Received: vocabulary_size={vocabulary_size}"
                ) from error
            raise ValueError(
                f"The text does not give such a vocabulary: {' '.join(str(error).split())} "
                f"Received: vocabulary_size={vocabulary_size}"
            ) from error
    return SentencePieceTokenizer(_without_paths(model.getvalue()))


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    for piece in pieces:
        for line in decode_utf8(piece).split("\n"):
            # NUL is encoded as a byte piece, and the trainer does not accept it.
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
    """Removes file names, which vary between runs, and the limit type from a model."""
    from sentencepiece import sentencepiece_model_pb2

    messages: Any = sentencepiece_model_pb2
    message = messages.ModelProto.FromString(model)
    message.normalizer_spec.ClearField("normalization_rule_tsv")
    message.denormalizer_spec.ClearField("normalization_rule_tsv")
    message.trainer_spec.ClearField("hard_vocab_limit")
    return message.SerializeToString(deterministic=True)
