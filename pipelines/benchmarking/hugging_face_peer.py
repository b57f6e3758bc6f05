"""Training, evaluation and generation of Hugging Face's `TransfoXLLMHeadModel` in turns.

`turn_server` runs this file in a Python with `torch` and `transformers` 4.34.1.
The full softmax is used. Shape letters: B rows, T segment length, M memory length, D width.
"""

from collections.abc import Callable
from typing import Any

import torch
import transformers


def create(request: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
    """Creates the work of a request.

    Args:
        request: dict with `work`, the sizes of the model and `dtype`.
    """
    torch.manual_seed(0)
    model = transformers.TransfoXLLMHeadModel(_config(request))
    if request["work"] == "train":
        return _training(model.train(), request)
    model = model.eval()
    if request["dtype"] == "bfloat16":
        model = model.to(torch.bfloat16)
    segment_length = request["segment_length"] if request["work"] == "evaluate" else 1
    return _reading(model, request, segment_length)


def _config(request: dict[str, Any]) -> Any:
    return transformers.TransfoXLConfig(
        vocab_size=request["vocabulary_size"],
        cutoffs=[],
        adaptive=False,
        div_val=1,
        d_model=request["hidden_dim"],
        d_embed=request["hidden_dim"],
        n_head=request["num_heads"],
        d_head=request["head_dim"],
        d_inner=request["intermediate_dim"],
        n_layer=request["num_layers"],
        mem_len=request["memory_length"],
        clamp_len=-1,
        same_length=False,
        dropout=request["dropout"],
        dropatt=request["attention_dropout"],
    )


def _memory(request: dict[str, Any]) -> Any:
    """Returns a full memory: `num_layers` tensors `[M, B, D]`."""
    shape = request["memory_length"], request["num_rows"], request["hidden_dim"]
    return [torch.randn(shape) for _ in range(request["num_layers"])]


def _tokens(request: dict[str, Any], segment_length: int) -> Any:
    size = request["num_rows"], segment_length
    return torch.randint(0, request["vocabulary_size"], size)  # [B, T]


def _training(model: Any, request: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
    optimizer = torch.optim.Adam(model.parameters(), lr=request["learning_rate"])
    in_half = request["dtype"] == "bfloat16"
    if in_half:
        _score_in_float32(model)
    carried = _memory(request)

    def turn(count: int) -> dict[str, Any]:
        nonlocal carried
        for _ in range(count):
            tokens = _tokens(request, request["segment_length"])
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=in_half):
                outputs = model(input_ids=tokens, mems=carried, labels=tokens)
            outputs.losses.float().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), request["clip_norm"])
            optimizer.step()
            carried = [each.detach() for each in outputs.mems]
        return {"tokens": count * tokens.numel()}

    return turn


def _score_in_float32(model: Any) -> None:
    """Keeps the softmax out of the half precision, which its own code does not bear."""
    score = model.crit.forward

    def forward(hidden: Any, *arguments: Any, **options: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return score(hidden.float(), *arguments, **options)

    model.crit.forward = forward


def _reading(
    model: Any, request: dict[str, Any], segment_length: int
) -> Callable[[int], dict[str, Any]]:
    """Scores segments; one token at a time is followed by the likeliest one."""
    writes = request["work"] == "generate"
    dtype = next(model.parameters()).dtype
    carried = [each.to(dtype) for each in _memory(request)]
    tokens = _tokens(request, segment_length)

    def turn(count: int) -> dict[str, Any]:
        nonlocal carried, tokens
        with torch.no_grad():
            for _ in range(count):
                labels = {} if writes else {"labels": tokens}
                outputs = model(input_ids=tokens, mems=carried, **labels)
                carried = outputs.mems
                if writes:
                    tokens = outputs.prediction_scores[:, -1:].argmax(-1)
        return {"tokens": count * tokens.numel()}

    return turn
