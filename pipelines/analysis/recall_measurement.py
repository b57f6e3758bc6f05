"""Measurements of `txl analyze recall`, and the text that a model can learn recall from."""

import argparse
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from txl_tf.causal_lm.model_source import ModelSource
from txl_tf.data.documents import FileDocuments
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.tokenizers.tokenizer import InvalidTextError, Tokenizer
from txl_tf.errors import MismatchError, UsageError
from txl_tf.evaluation.answer_scorer import AnswerScorer
from txl_tf.evaluation.passkeys import PasskeyDocument, PasskeyDocuments, training_texts
from txl_tf.evaluation.position_losses import PositionLosses, doubling_positions
from txl_tf.evaluation.text_rows import context_reach
from txl_tf.run_folder import build_model
from txl_tf.storage.files import write_file
from txl_tf.storage.untrusted_files import storage_errors

from ..evaluation.splits import create_evaluator, evaluate_split
from ..progress import show_progress
from ..trained_model import open_dataset
from .recall import evaluation_config, require_tokenizer, segment_length

_FILLER = "The sea is wide, the sky is far."
_MAX_FILLER_TOKENS = 1 << 22
_READ_TOKENS = 1 << 20


def write_training_text(arguments: argparse.Namespace) -> int:
    """Writes documents with a key and its question, a line each; returns the bytes.

    A token is a character here, so that a segment is `--segment-length` of them.
    """
    characters = _characters(_filler_text(arguments))
    documents = PasskeyDocuments(
        _characters,
        arguments.sentences,
        arguments.key_list,
        characters,
        num_choices=1,
        seed=arguments.seed,
    )
    made = training_texts(
        documents,
        arguments.documents,
        arguments.distances,
        arguments.segment_length,
        arguments.seed,
    )
    lines = ("".join(map(chr, np.concatenate(parts))).strip() for parts in made)
    end = arguments.question.rpartition("KEY")[2].rstrip()
    content = "".join(f"{line}{end}\n" for line in lines).encode()
    with storage_errors("The text cannot be written", arguments.write_text):
        write_file(arguments.write_text, content)
    return len(content)


def _characters(text: str) -> np.ndarray:
    return np.fromiter(map(ord, text), np.int32, len(text))


def _filler_text(arguments: argparse.Namespace) -> str:
    """Returns the text between statement and question, in one line, after a space."""
    if arguments.filler is None:
        return f" {_FILLER}"
    pieces = FileDocuments([arguments.filler], check_utf8=True)
    words = b"".join(piece for document in pieces for piece in document).decode().split()
    if not words:
        raise UsageError("The filler has no words.", where=arguments.filler)
    return f" {' '.join(words)}"


def measure_recall(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures recall by distance, and with a data set loss by position; returns the report."""
    source: ModelSource = arguments.source
    dataset = None
    if arguments.data is not None:
        identity = source.tokenizer_identity()
        dataset = open_dataset(arguments.data, arguments.experiment, identity, arguments.split)
    documents = _documents(arguments, require_tokenizer(source), dataset)
    document_tokens, longest_answer = _lengths(arguments, documents)
    step, weights = source.read_weights()
    recall = [
        figures
        for memory_length in arguments.memory_lengths
        for figures in _measure_memory(
            arguments,
            memory_length,
            build_model(_model_config(arguments, memory_length), weights),
            functools.partial(
                documents.document,
                # The last token of an answer is not read.
                num_tokens=document_tokens - longest_answer + 1,
            ),
            longest_answer,
        )
    ]
    losses = None
    if dataset is not None:
        losses = _loss_by_position(arguments, dataset, step or 0, weights)
    return {
        "workdir": arguments.workdir,
        "step": step,
        "segment_length": segment_length(arguments),
        "memory_lengths": arguments.memory_lengths,
        "reach_tokens": [
            None if each is None else context_reach(_model_config(arguments, each))
            for each in arguments.memory_lengths
        ],
        "distances_segments": arguments.distances,
        "num_documents": arguments.documents,
        "document_tokens": document_tokens,
        "num_keys": len(arguments.key_list),
        "num_choices": arguments.choices,
        "exact_chance": 1 / len(arguments.key_list),
        "choice_chance": 1 / arguments.choices,
        "statement": arguments.statement,
        "question": arguments.question,
        "filler": arguments.filler or arguments.filler_split or _FILLER,
        "seed": arguments.seed,
        "recall": recall,
        "loss_by_position": losses,
    }


def _lengths(arguments: argparse.Namespace, documents: PasskeyDocuments) -> tuple[int, int]:
    """Returns the tokens of a document, whole segments, and of the longest answer."""
    length, num_documents = segment_length(arguments), arguments.documents
    longest = documents.longest_answer(num_documents)
    if longest > length:
        raise UsageError(
            f"A key has {longest} tokens, more than a segment of {length}.",
            where="--keys, --key-pattern",
            remedy="Give shorter keys.",
        )
    # A segment of filler comes before the farthest statement.
    fixed_segments = -(-documents.fixed_tokens(num_documents) // length) + 1
    return (arguments.distances[-1] + fixed_segments) * length, longest


def _model_config(arguments: argparse.Namespace, memory_length: int | None) -> Any:
    config = evaluation_config(arguments, memory_length)
    names = ("segment_length", "memory_length", "clamp_length", "same_length")
    values = {name: getattr(config, name) for name in names}
    changes = {name: value for name, value in values.items() if value is not None}
    return arguments.experiment.model.replace(**changes)


def _documents(
    arguments: argparse.Namespace, tokenizer: Tokenizer, dataset: PreparedDataset | None
) -> PasskeyDocuments:
    def encode(text: str) -> np.ndarray:
        try:
            ids = tokenizer.encode_piece(text.encode(), begins_line=False, ends_document=False)
        except InvalidTextError as error:
            raise UsageError(error.reason, where=f"text {text[:80]!r}") from error
        if not len(ids):
            raise UsageError("The tokenizer makes no token of it.", where=f"text {text[:80]!r}")
        return ids.astype(np.int32)

    if arguments.filler_split is None or dataset is None:
        filler = encode(_filler_text(arguments))
    else:
        num_tokens = min(dataset.num_tokens(arguments.filler_split), _MAX_FILLER_TOKENS)
        filler = dataset.read_tokens(arguments.filler_split, 0, num_tokens)
    return PasskeyDocuments(
        encode,
        arguments.sentences,
        arguments.key_list,
        filler,
        num_choices=arguments.choices,
        seed=arguments.seed,
    )


def _measure_memory(
    arguments: argparse.Namespace,
    memory_length: int | None,
    model: Any,
    make_document: Callable[..., PasskeyDocument],
    longest_answer: int,
) -> Iterator[dict[str, Any]]:
    """Yields the figures of every distance with one memory length."""
    scorer = AnswerScorer(
        model,
        memory_length,
        arguments.batch_size,
        # Where XLA is not ruled out, the device's plan decides.
        jit_compile=None if arguments.experiment.training.jit_compile else False,
    )
    name = "recall" if memory_length is None else f"recall, memory {memory_length}"
    for distance in show_progress(arguments.distances, len(arguments.distances), name):
        distance_tokens = distance * segment_length(arguments)
        scores, distances = [], []
        for first in range(0, arguments.documents, arguments.batch_size):
            numbers = range(first, min(first + arguments.batch_size, arguments.documents))
            made = [make_document(each, distance_tokens=distance_tokens) for each in numbers]
            scores.append(scorer(*_arrays(made, longest_answer)))
            distances += [each.key_distance_tokens for each in made]
        nats = np.concatenate([each.nats for each in scores])  # [B, K]
        is_exact = np.concatenate([each.is_greedy[:, 0] for each in scores])
        about = {"memory_length": memory_length, "distance_segments": distance}
        yield {**about, **recall_figures(nats, is_exact, distances)}


def recall_figures(
    nats: np.ndarray, is_exact: np.ndarray, distances_tokens: Iterable[int]
) -> dict[str, Any]:
    """Computes the figures of one distance and memory length, as JSON values.

    Args:
        nats: float array `(B, K)`. Of every answer; the first is the right one.
        is_exact: bool vector `(B,)`. Whether greedy generation writes it.
        distances_tokens: ints. From key to answer, of each document.
    """
    # An answer that is as likely as the right one counts as before it.
    ranks = 1 + np.sum(nats[:, 1:] <= nats[:, :1], axis=1)
    shares = np.exp(nats.min(axis=1, keepdims=True) - nats)
    return {
        "key_distance_tokens": max(distances_tokens),
        "exact_accuracy": float(np.mean(is_exact)),
        "choice_accuracy": float(np.mean(ranks == 1)),
        "mean_rank": float(np.mean(ranks)),
        "key_nats": float(np.mean(nats[:, 0])),
        "key_probability_among_choices": float(np.mean(shares[:, 0] / shares.sum(axis=1))),
    }


def _arrays(
    documents: Sequence[PasskeyDocument], longest: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    num_choices = len(documents[0].answers)
    answers = np.zeros((len(documents), num_choices, longest), np.int32)
    lengths = np.zeros((len(documents), num_choices), np.int32)
    for row, document in enumerate(documents):
        if len({answer.tobytes() for answer in document.answers}) < num_choices:
            raise MismatchError(
                "The tokenizer makes the same tokens of different keys.",
                where="--keys, --key-pattern",
                remedy="Give --keys that the vocabulary of the model tells apart.",
            )
        for choice, answer in enumerate(document.answers):
            answers[row, choice, : len(answer)] = answer
            lengths[row, choice] = len(answer)
    return np.stack([document.prompt for document in documents]), answers, lengths


def _loss_by_position(
    arguments: argparse.Namespace,
    dataset: PreparedDataset,
    step: int,
    weights: dict[str, np.ndarray],
) -> dict[str, Any]:
    split, num_tokens = arguments.split, dataset.num_tokens(arguments.split)
    starts = _document_starts(dataset, split)
    longest = int(np.max(np.diff([*starts, num_tokens])))
    firsts = arguments.positions or doubling_positions(longest)
    by_memory = []
    for memory_length in arguments.memory_lengths:
        evaluation = evaluation_config(arguments, memory_length)
        evaluator = create_evaluator(arguments.experiment.replace(evaluation=evaluation))
        evaluator.load_arrays(weights)
        losses = PositionLosses(starts, firsts)
        name = "positions" if memory_length is None else f"positions, memory {memory_length}"
        track = functools.partial(_track, name)
        evaluate_split(
            evaluator,
            dataset,
            split,
            step,
            track=track,
            observe=losses.add,
        )
        positions = [dataclasses.asdict(each) for each in losses.result()]
        by_memory.append({"memory_length": memory_length, "positions": positions})
    return {
        "split": split,
        "data_fingerprint": dataset.fingerprint,
        "num_documents": len(starts),
        "longest": longest,
        "by_memory": by_memory,
    }


def _track(name: str, batches: Iterable[Any], num_batches: int) -> Iterable[Any]:
    return show_progress(batches, num_batches, name)


def _document_starts(dataset: PreparedDataset, split: str) -> np.ndarray:
    """Returns the places of the tokens that begin the documents of a split."""
    num_tokens = dataset.num_tokens(split)
    parts = [
        first
        + np.flatnonzero(
            dataset.read_document_starts(split, first, min(first + _READ_TOKENS, num_tokens))
        )
        for first in range(0, num_tokens, _READ_TOKENS)
    ]
    # A text that was cut begins in the middle of a document.
    return np.union1d([0], np.concatenate(parts)).astype(np.int64)
