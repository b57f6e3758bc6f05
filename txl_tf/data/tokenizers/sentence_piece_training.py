"""Trains SentencePiece models that give every text back."""

import io
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from txl_tf.data.text_sources.text_pieces import text_pieces
from txl_tf.data.tokenizers.sentence_piece_tokenizer import (
    BLOCK_CHARACTER,
    BLOCK_SUBSTITUTE,
    SentencePieceTokenizer,
)
from txl_tf.data.tokenizers.utf8_text import decode_utf8
from txl_tf.imports import require_extra

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
        pieces: iterable of bytes. UTF-8 text, cut as `text_pieces` cuts.
        vocabulary_size: int. Number of pieces: one for what cannot occur, 256
            bytes, and what is learned.
        model_type: str. `"bpe"` (Sennrich et al. 2016) or `"unigram"` (Kudo
            2018). Defaults to `"unigram"`.
        max_lines: int. Lines to learn from; where there are more, as many are
            chosen at random, the same ones every time. Defaults to `200_000`.
        character_coverage: float in `(0, 1]`. Part of the text whose characters
            get a piece of their own. Defaults to `0.9995`.

    Returns:
        The tokenizer.

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
                for part in text_pieces([text.encode()], _MAX_LINE_BYTES):
                    yield part.decode()


def _rule_file(folder: str, name: str, source: str, target: str) -> str:
    path = os.path.join(folder, name)
    with open(path, "w", encoding="ascii") as file:
        file.write(f"{ord(source):X}\t{ord(target):X}\n")
    return path


def _without_paths(model: bytes) -> bytes:
    """The model without the names of the rule files, which differ from run to run."""
    from sentencepiece import sentencepiece_model_pb2

    messages: Any = sentencepiece_model_pb2
    message = messages.ModelProto.FromString(model)
    message.normalizer_spec.ClearField("normalization_rule_tsv")
    message.denormalizer_spec.ClearField("normalization_rule_tsv")
    return message.SerializeToString(deterministic=True)
