"""Process that repeats the work of one side of a benchmark.

    PYTHONPATH=CHECKOUT python tests/measurements/benchmark_worker.py own
    PYTHON tests/measurements/benchmark_worker.py hugging_face

`own` is this project, in any checkout. The peer is `TransfoXLLMHeadModel` with its full softmax. It
needs `torch` and `transformers` 4.34.1, but no package of this project. The first line of the
standard input is a request in JSON. The process answers it when the work can begin. Each further
line is a number of repetitions. The answer has their seconds, their tokens and the peak memory of
the process. Tokens and weights are random, because the time does not depend on them.

Shape letters: B rows, T segment length, M memory length, D width.
"""

import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

Work = Callable[[int], int]
"""Function that repeats the work a number of times, and returns the number of tokens."""

_PROMPT_TOKENS = 16
# Segments per row before the corpus repeats.
_SEGMENTS_PER_ROW = 64


def create_txl_work(request: dict[str, Any]) -> Work:
    """Creates the work of this project, with the defaults of its jobs."""
    with contextlib.suppress(ImportError):  # older checkouts lack this function
        from pipelines.shell.tensorflow_import import import_tensorflow

        import_tensorflow()
    from txl_tf.config.experiment import ExperimentConfig

    experiment = ExperimentConfig.from_dict(request["experiment"])
    experiment = experiment.with_overrides(request["overrides"])
    if request["work"] == "train":
        return _train(experiment, request["folder"])
    if request["work"] == "evaluate":
        return _evaluate(experiment)
    return _generate(experiment, request["num_rows"])


def _train(experiment: Any, folder: str) -> Work:
    """Creates the loop of `txl train` without its ledger and checkpoints."""
    import tensorflow as tf

    from pipelines.run.precision import with_faster_policy
    from pipelines.run.training_data import TrainingData
    from txl_tf.config.limits import MAX_STEPS_PER_LOOP
    from txl_tf.distribution.strategy import create_strategy
    from txl_tf.training.trainer import Trainer

    # A training run is deterministic too.
    tf.config.experimental.enable_op_determinism()
    # The run must not end during the benchmark.
    experiment = experiment.with_overrides([f"training.num_steps={MAX_STEPS_PER_LOOP}"])
    strategy = create_strategy()
    experiment = with_faster_policy(experiment, strategy)
    tokens_per_step = experiment.training.global_batch_size * experiment.model.segment_length
    num_tokens = _SEGMENTS_PER_ROW * tokens_per_step + 1
    dataset = _write_random_dataset(folder, num_tokens, experiment.model.vocabulary_size)
    reader = TrainingData(dataset, experiment)
    sources = reader.reader.dataset_fn, reader.reader.describe_row
    trainer = Trainer(experiment, strategy, *sources)

    return lambda count: sum(trainer.take_steps().num_tokens for _ in range(count))


def _write_random_dataset(folder: str, num_tokens: int, vocabulary_size: int) -> str:
    """Writes a data set of random token ids and returns its path."""
    from txl_tf.data.preparation import prepare_dataset
    from txl_tf.data.tokenizers.id_tokenizer import IdTokenizer

    content = " ".join(map(str, _random_tokens(num_tokens, vocabulary_size))).encode()
    path = os.path.join(folder, "data")
    prepare_dataset({"train": [content]}, IdTokenizer(vocabulary_size), path, "random")
    return path


def _random_tokens(num_tokens: int, vocabulary_size: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).integers(0, vocabulary_size, num_tokens).astype(np.int32)


def _evaluate(experiment: Any) -> Work:
    """Creates an evaluation that reads as many tokens at a time as `txl evaluate`."""
    from txl_tf.distribution.strategy import create_strategy
    from txl_tf.evaluation.evaluation_text import EvaluationText
    from txl_tf.evaluation.evaluator import create_evaluator

    # Without warm-up, rows read only the tokens that are counted.
    evaluation = experiment.evaluation.replace(warm_up_tokens=0)
    evaluator = create_evaluator(experiment.replace(evaluation=evaluation), create_strategy())
    config, num_rows = evaluator.config, experiment.evaluation.batch_size
    read_tokens = num_rows * evaluator.programs.segments_per_read(num_rows) * config.segment_length

    def evaluate(count: int) -> int:
        tokens = _random_tokens(count * read_tokens + 1, config.vocabulary_size)
        # Bytes, characters and words affect the units of figures only.
        text = EvaluationText.of_tokens("text", tokens, num_bytes=1, num_characters=1, num_words=1)
        return evaluator.evaluate(text, step=0).num_tokens

    return evaluate


def _generate(experiment: Any, num_rows: int) -> Work:
    """Creates generation with a full memory; one row is written token by token, like a stream."""
    from txl_tf.generation import GenerationSession
    from txl_tf.generation.session import CAPACITY
    from txl_tf.models import create_model
    from txl_tf.samplers import RandomSampler

    config = experiment.model
    model = create_model(config, dtype="float32")
    session = GenerationSession(model, RandomSampler(top_p=0.9), num_rows=num_rows)
    num_tokens = max(_PROMPT_TOKENS, getattr(config, "effective_memory_length", 0))
    session.write([_random_tokens(num_tokens, config.vocabulary_size)] * num_rows, max_tokens=1)
    tokens_per_call = CAPACITY if num_rows > 1 else 1
    # A stream of text also computes the constants of the weights only once.
    constants = {"constants": session.constants()} if hasattr(session, "constants") else {}

    def generate(count: int) -> int:
        for _ in range(count * CAPACITY // tokens_per_call):
            session.write(max_tokens=tokens_per_call, **constants)
        return count * CAPACITY * num_rows

    return generate


def create_peer_work(request: dict[str, Any]) -> Work:
    """Creates the work of the peer, in the precision `dtype` of the request."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.TransfoXLConfig(
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
    model = transformers.TransfoXLLMHeadModel(config)
    shape = request["memory_length"], request["num_rows"], request["hidden_dim"]
    memory = [torch.randn(shape) for _ in range(request["num_layers"])]  # [M, B, D]
    if request["work"] == "train":
        return _train_peer(torch, model.train(), memory, request)
    return _read_peer(torch, model.eval(), memory, request)


def _train_peer(torch: Any, model: Any, memory: list[Any], request: dict[str, Any]) -> Work:
    """Creates training steps with Adam and clipping."""
    optimizer = torch.optim.Adam(model.parameters(), lr=request["learning_rate"])
    is_half = request["dtype"] == "bfloat16"
    # The peer's softmax fails in half precision.
    score = model.crit.forward

    def score_in_float32(hidden: Any, *arguments: Any, **options: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return score(hidden.float(), *arguments, **options)

    model.crit.forward = score_in_float32
    size = request["num_rows"], request["segment_length"]

    def take_steps(count: int) -> int:
        nonlocal memory
        for _ in range(count):
            tokens = torch.randint(0, request["vocabulary_size"], size)  # [B, T]
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
                outputs = model(input_ids=tokens, mems=memory, labels=tokens)
            outputs.losses.float().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), request["clip_norm"])
            optimizer.step()
            memory = [each.detach() for each in outputs.mems]
        return count * tokens.numel()

    return take_steps


def _read_peer(torch: Any, model: Any, memory: list[Any], request: dict[str, Any]) -> Work:
    """Creates the scoring of segments, or greedy generation."""
    writes = request["work"] == "generate"
    dtype = getattr(torch, request["dtype"])
    model, memory = model.to(dtype), [each.to(dtype) for each in memory]
    size = request["num_rows"], 1 if writes else request["segment_length"]
    tokens = torch.randint(0, request["vocabulary_size"], size)

    def read(count: int) -> int:
        nonlocal memory, tokens
        with torch.no_grad():
            for _ in range(count):
                labels = {} if writes else {"labels": tokens}
                outputs = model(input_ids=tokens, mems=memory, **labels)
                memory = outputs.mems
                if writes:
                    tokens = outputs.prediction_scores[:, -1:].argmax(-1)
        return count * tokens.numel()

    return read


def serve(create: Callable[[dict[str, Any]], Work]) -> None:
    """Answers requests until the standard input ends."""
    # Libraries print too, so answers get the standard output and libraries the standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(figures: dict[str, Any]) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        print(json.dumps({**figures, "peak_bytes": peak}), file=answers, flush=True)

    work = create(json.loads(sys.stdin.readline()))
    answer({})
    for line in sys.stdin:
        begin = time.perf_counter()
        num_tokens = work(int(line))
        answer({"seconds": time.perf_counter() - begin, "tokens": num_tokens})


if __name__ == "__main__":
    if sys.argv[1] == "own":
        serve(create_txl_work)
    else:
        # The modules beside this file must not hide packages of the other Python.
        del sys.path[0]
        serve(create_peer_work)
