"""Runs models on JAX in a process of its own: `python -m tests.models.jax_process IN OUT`.

IN has the configurations, weights and tokens that `test_jax_backend` wrote, OUT
gets what the models make of them. A process has one Keras backend.
"""

import json
import sys

import keras
import numpy as np

from txl_tf.config.model import ModelConfig
from txl_tf.models.transformer_xl import TransformerXL


def run(model, segments, compile_function=lambda function: function):
    """Scores, log-probabilities and memory of segments that follow each other."""
    memory = model.initial_memory(segments.shape[1])
    log_probs_of, score = compile_function(model.log_probs), compile_function(model.score)
    results = {}
    for number, tokens in enumerate(segments):
        log_probs, _ = log_probs_of(tokens[:, :-1], memory)
        nll, memory = score(tokens[:, :-1], tokens[:, 1:], memory)
        results[f"{number}/nll"] = nll
        results[f"{number}/log_probs"] = log_probs
        results[f"{number}/valid_length"] = memory.valid_length
        for layer, state in enumerate(memory.states):
            results[f"{number}/states/{layer}"] = state
    return {name: keras.ops.convert_to_numpy(result) for name, result in results.items()}


def main(source, target):
    if keras.backend.backend() != "jax":
        raise SystemExit(f"KERAS_BACKEND must be jax. Received: {keras.backend.backend()}")
    import jax

    given = np.load(source, allow_pickle=False)
    results = {}
    for name, values in json.loads(str(given["configs"])).items():
        model = TransformerXL(ModelConfig.from_dict(values))
        for weight in model.weights:
            weight.assign(given[f"{name}/weights/{weight.path}"])
        for key, result in run(model, given[f"{name}/segments"], jax.jit).items():
            results[f"{name}/{key}"] = result
    np.savez(target, allow_pickle=False, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
