"""Model for EleutherAI's lm-evaluation-harness, which reads long texts with memory."""

import collections
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM
from txl_tf.causal_lm.continuation_scorer import Continuation, ContinuationScorer
from txl_tf.data.tokenizers.tokenizer import InvalidTextError, Tokenizer
from txl_tf.errors import UsageError, did_you_mean
from txl_tf.evaluation.evaluation_model import evaluation_conditions
from txl_tf.evaluation.scores import score_text
from txl_tf.imports import require_extra

require_extra("harness", "lm_eval", purpose="The harness")

# The class below derives from a class of the harness, so a missing package is reported first.
from lm_eval.api.model import LM  # noqa: E402
from lm_eval.api.registry import register_model  # noqa: E402
from lm_eval.models.utils import normalize_gen_kwargs  # noqa: E402
from lm_eval.utils import (  # noqa: E402
    get_rolling_token_windows,
    make_disjoint_window,
)
from tqdm import tqdm  # noqa: E402

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

# Supported settings of generation. Other settings would change the text, so they are refused.
_SETTINGS = {"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p"}


@register_model("txl")
class HarnessModel(LM):
    """Model `"txl"` of the harness, from a model folder of any kind.

    Texts of any length are read segment by segment with memory. Lengths and precision are those of
    the run's evaluations, so a document has the figures of `txl evaluate --text`. If a context is
    empty, the first token of the continuation is the context.

    Args:
        pretrained: path of a model folder of any kind, or a `TransformerXLCausalLM`.
        step: See `txl_tf.load_model`.
        tokenizer: optional `Tokenizer`, or path of a prepared data set with one. Defaults to
            `None`: the tokenizer in the model folder.
        memory_length: optional int. See `TransformerXLCausalLM.score`.
        segment_length: optional int. See `TransformerXLCausalLM.score`.
        max_length: optional int. Length of a window in tokens, for scores like those of a model
            without memory. Documents are divided into windows, and the beginning of a context is
            cut off so that the rest and the continuation fit into one window. Defaults to `None`:
            memory covers the whole text.
        batch_size: int. Requests per batch. It does not affect log-likelihoods.
        seed: int. Equal seeds give equal texts in `generate_until`, for the same requests and
            `batch_size`.
        device: not used, because TensorFlow selects devices. The harness passes it.
        max_batch_size: not used, because the batch size is fixed. The harness passes it.

    Raises:
        JobError: See `txl_tf.load`.
        UsageError: If an argument is out of its range, or the model has no tokenizer.

    Example:
    ```python
    import lm_eval

    task = {
        "task": "mine",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "mine.jsonl"}},
        "test_split": "test",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
    }
    model = HarnessModel("runs/mine")
    results = lm_eval.simple_evaluate(model, tasks=[task])["results"]["mine"]
    print(results["bits_per_byte,none"])
    ```
    """

    def __init__(
        self,
        pretrained: TransformerXLCausalLM | str | os.PathLike[str],
        *,
        step: int | Literal["best", "newest"] | None = None,
        tokenizer: Tokenizer | str | os.PathLike[str] | None = None,
        memory_length: int | None = None,
        segment_length: int | None = None,
        max_length: int | None = None,
        batch_size: int | str = 8,
        seed: int = 0,
        device: str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(pretrained, TransformerXLCausalLM):
            pretrained = TransformerXLCausalLM.from_preset(
                pretrained, step=step, tokenizer=tokenizer
            )
        if pretrained.tokenizer is None:
            raise UsageError(
                "The model has no tokenizer to encode the texts of the harness.",
                where="tokenizer",
                remedy="Name the folder of the prepared data set: tokenizer=DIR.",
            )
        if max_length is not None and (not isinstance(max_length, int) or max_length < 1):
            raise UsageError("max_length must be a positive int.", where=f"max_length={max_length}")
        if not str(batch_size).isdecimal() or int(batch_size) < 1:
            raise UsageError(
                "The batch size must be a positive number; `auto` is not supported.",
                where=f"batch_size={batch_size}",
            )
        self._lm, self._tokenizer = pretrained, pretrained.tokenizer
        self._max_length = max_length
        self._batch_size = int(batch_size)
        self._seeds = itertools.count(seed)
        evaluator = self._evaluator = self._lm.evaluator(memory_length, segment_length)
        self._scorer = ContinuationScorer(evaluator.model, self._batch_size, evaluator.config)

    def get_model_info(self) -> dict[str, Any]:
        """Returns the lengths and the precision of scoring, which the harness adds to results."""
        return evaluation_conditions(self._evaluator.config, self._lm.evaluation)

    def loglikelihood(
        self, requests: "Sequence[Instance]", disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Scores each continuation after its context, and tests if it is the greedy one.

        The two texts are encoded together. The continuation starts after as many tokens as the
        context has when it is encoded without the white space at its end. Log-likelihoods are in
        nats. Raises DataDamagedError if the tokenizer cannot encode a text, and UsageError if a
        continuation is longer than `max_length`.
        """
        arguments = [request.args for request in requests]
        pairs = [self._pair(*each) for each in arguments]
        results: list[tuple[float, bool]] = [(0.0, True)] * len(pairs)
        scores = tqdm(self._scorer(pairs), "Continuations", len(pairs), disable=disable_tqdm)
        for place, (nats, is_greedy) in scores:
            results[place] = (-float(nats.sum()), is_greedy)
            self.cache_hook.add_partial("loglikelihood", arguments[place], results[place])
        return results

    def loglikelihood_rolling(
        self, requests: "Sequence[Instance]", disable_tqdm: bool = False
    ) -> list[float]:
        """Returns the log-likelihoods of whole documents, in nats.

        The first token counts as the mean of the others, because the harness divides by the bytes
        and words of the whole document. A document of fewer than two tokens has the score 0. Raises
        DataDamagedError if the tokenizer cannot encode a document.
        """
        documents = [request.args[0] for request in requests]
        results = []
        for document in tqdm(documents, "Documents", disable=disable_tqdm):
            token_ids = self._encode(document, ends_document=True)
            results.append(-self._document_nats(document, token_ids))
            self.cache_hook.add_partial("loglikelihood_rolling", (document,), results[-1])
        return results

    def generate_until(
        self, requests: "Sequence[Instance]", disable_tqdm: bool = False
    ) -> list[str]:
        """Continues contexts, greedily unless sampling is requested.

        The whole context is read with memory, even with `max_length`. A continuation ends before
        the first text of `until`, or before the end of a document. Raises UsageError if a setting
        is not supported or a context has no token.
        """
        arguments = [request.args for request in requests]
        results = [""] * len(arguments)
        num_rows = min(self._batch_size, len(arguments))
        with tqdm(total=len(arguments), desc="Texts", disable=disable_tqdm) as progress:
            for places in self._generation_batches(arguments):
                contexts = [arguments[place][0] for place in places]
                # The number of rows is constant, because another number needs another program.
                contexts += contexts[-1:] * (num_rows - len(contexts))
                texts = self._generate(contexts, arguments[places[0]][1])
                for place, text in zip(places, texts, strict=False):
                    results[place] = text
                    self.cache_hook.add_partial("generate_until", arguments[place], text)
                progress.update(len(places))
        return results

    def _pair(self, context: str, continuation: str) -> Continuation:
        num_context = len(self._encode(context.rstrip()))
        token_ids = self._encode(context + continuation)
        # A token may cross the border of the texts, so together they may have fewer tokens than
        # the context alone.
        num_context = min(max(1, num_context), max(1, len(token_ids)))
        if self._max_length is None:
            return Continuation(token_ids, num_context)
        num_scored = len(token_ids) - num_context
        if num_scored > self._max_length:
            raise UsageError(
                f"A continuation has {num_scored} tokens, more than max_length {self._max_length}.",
                where=f"continuation {continuation[:80]!r}",
                remedy="Choose a larger max_length, or leave it out to read with memory.",
            )
        token_ids = token_ids[-self._max_length - 1 :]
        return Continuation(token_ids, len(token_ids) - num_scored)

    def _document_nats(self, document: str, token_ids: np.ndarray) -> float:
        """Returns the nats of all tokens of a document; the first token counts as the mean."""
        if len(token_ids) < 2:
            return 0.0
        if self._max_length is None:
            total = score_text(self._evaluator, self._tokenizer, document).total_nats
        else:
            windows = get_rolling_token_windows(
                token_ids[1:].tolist(), int(token_ids[0]), self._max_length, context_len=1
            )
            pairs = [
                Continuation(np.array(before + scored_ids, np.int32), len(before))
                for before, scored_ids in map(make_disjoint_window, windows)
            ]
            total = float(sum(score.nats.sum() for _, score in self._scorer(pairs)))
        return total * len(token_ids) / (len(token_ids) - 1)

    def _encode(self, text: str, *, ends_document: bool = False) -> np.ndarray:
        """Encodes a whole document, or a beginning that ends within a line."""
        try:
            return self._tokenizer.encode(text, ends_document=ends_document).astype(np.int32)
        except InvalidTextError as error:
            raise error.damaged(
                f"text {text[:80]!r}",
                "Choose a model whose vocabulary covers the texts of the task.",
            ) from error

    def _generation_batches(
        self, arguments: Sequence[tuple[str, dict[str, Any]]]
    ) -> Iterator[list[int]]:
        """Groups the indices of requests with equal settings and contexts of similar lengths.

        No group has a context twice, because a group has one seed, and so both texts would be
        equal.
        """
        counts: collections.Counter[str] = collections.Counter()
        keys = []
        for context, settings in arguments:
            keys.append((counts[context], json.dumps(settings, sort_keys=True), len(context)))
            counts[context] += 1
        places = sorted(range(len(arguments)), key=keys.__getitem__)
        for _, group in itertools.groupby(places, lambda place: keys[place][:2]):
            equal = list(group)
            for first in range(0, len(equal), self._batch_size):
                yield equal[first : first + self._batch_size]

    def _generate(self, contexts: list[str], settings: dict[str, Any]) -> list[str]:
        normal = normalize_gen_kwargs(settings)
        for name in sorted(normal.keys() - _SETTINGS):
            raise UsageError(
                f"The setting {name} is not supported.{did_you_mean(name, _SETTINGS)}",
                where="generation_kwargs",
                remedy=f"Choose from {', '.join(sorted(_SETTINGS))}.",
            )
        temperature = float(normal.get("temperature", 1.0)) if normal["do_sample"] else 0.0
        return self._lm.generate(
            contexts,
            max_tokens=normal["max_gen_toks"],
            stop=[each for each in normal["until"] if each],
            temperature=temperature,
            top_k=normal.get("top_k") or 0,
            top_p=normal.get("top_p", 1.0),
            seed=next(self._seeds),
            strip_prompt=True,
        )
