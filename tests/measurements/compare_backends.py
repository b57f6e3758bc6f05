"""Compares the layers on JAX, on any device, with TensorFlow on a CPU.

    python -m tests.measurements.compare_backends write results.npz
    KERAS_BACKEND=jax python -m tests.measurements.compare_backends compare results.npz

`write` runs on TensorFlow, and `compare` runs on JAX without TensorFlow. Both draw the same weights
and tokens, read three segments, and train 20 steps with dropout, memory, clipping and Adam.
Gradients are compared in the first step. `compare` prints a line of JSON for each model and dtype.
It has the largest difference of each kind of array, relative to the largest number in the array.
"""

import json
import sys

import keras
import numpy as np
from keras import ops

from txl_tf.config.model import ModelConfig
from txl_tf.layers.seeded_dropout import SeededDropout
from txl_tf.models.presets import preset
from txl_tf.models.transformer_xl import TransformerXL

NUM_ROWS = 4
NUM_STEPS = 20
DTYPES = ("float32", "mixed_bfloat16")
SIZES = {"num_layers": 4, "hidden_dim": 256, "num_heads": 4, "intermediate_dim": 1024}
SIZES |= {"segment_length": 128, "memory_length": 128, "attention_dropout": 0.1}
CLUSTERS = {"embedding_dim": 256, "cutoffs": (200, 800), "division_factor": 4}
BASE = preset("enwik8_base").replace(**SIZES)
MODELS = {"base": BASE, "adaptive": BASE.replace(vocabulary_size=2000, **CLUSTERS)}
MASK_SHAPES = ((1, 7), (4, 128, 256), (3, 2, 65, 130))
MASK_SEEDS = ((0, 0), (1, 2), (-5, 2**31 - 1))
_MAX_SAMPLE = 20_000


def sample(tensor):
    """Returns up to 20,000 evenly spread numbers of a tensor, as float32."""
    # NumPy does it, because JAX would compile a program for every shape.
    numbers = np.asarray(ops.convert_to_numpy(tensor)).astype("float32").ravel()
    return numbers[:: -(-numbers.size // _MAX_SAMPLE)]


def draw_weights(model):
    """Assigns uniform random weights, which are the same on every backend."""
    generator = np.random.default_rng(1)
    for weight in model.weights:
        limit = max(weight.shape) ** -0.5
        values = generator.uniform(-limit, limit, weight.shape)
        weight.assign(values + 1.0 if weight.path.endswith("gamma") else values)


def mean_loss(model, tokens, memory, seed):
    """Returns the mean loss of a training step and the next memory."""
    nll, memory = model.score(
        tokens[:, :-1], tokens[:, 1:], memory, dropout_seed=seed, training=True
    )
    return ops.mean(nll), memory


def tensorflow_functions(model, optimizer):
    """Returns a function that reads a segment, and one that trains a step.

    The second returns the loss, the memory and the gradients.
    """
    import tensorflow as tf

    def train(tokens, memory, seed):
        with tf.GradientTape() as tape:
            loss, memory = mean_loss(model, tokens, memory, seed)
        weights = [weight.value for weight in model.trainable_variables]
        gradients = [tf.convert_to_tensor(each) for each in tape.gradient(loss, weights)]
        optimizer.apply(gradients, model.trainable_variables)
        return loss, memory, gradients

    return [tf.function(each, autograph=False) for each in (model.log_probs, train)]


def jax_functions(model, optimizer):
    """Returns the functions of `tensorflow_functions` for JAX."""
    import jax

    weights = model.trainable_variables

    @jax.jit
    def train_values(values, optimizer_values, *batch):
        def loss_of(values):
            with keras.StatelessScope(list(zip(weights, values, strict=True))):
                return mean_loss(model, *batch)

        (loss, memory), gradients = jax.value_and_grad(loss_of, has_aux=True)(values)
        updates = optimizer.stateless_apply(optimizer_values, gradients, values)
        return loss, memory, gradients, *updates

    def train(*batch):
        variables = weights, optimizer.variables
        values = ([variable.value for variable in each] for each in variables)
        loss, memory, gradients, *updates = train_values(*values, *batch)
        for variables_of_kind, new_values in zip(variables, updates, strict=True):
            for variable, value in zip(variables_of_kind, new_values, strict=True):
                variable.assign(value)
        return loss, memory, gradients

    return jax.jit(model.log_probs), train


def results_of(config, dtype):
    """Returns the results of a model by name, as arrays."""
    model = TransformerXL(config, dtype=dtype)
    draw_weights(model)
    optimizer = keras.optimizers.Adam(2.5e-4, global_clipnorm=0.25)
    optimizer.build(model.trainable_variables)
    is_on_jax = keras.backend.backend() == "jax"
    functions = jax_functions if is_on_jax else tensorflow_functions
    log_probs_of, train = functions(model, optimizer)
    shape = (NUM_STEPS, NUM_ROWS, config.segment_length + 1)
    segments = np.random.default_rng(2).integers(0, config.vocabulary_size, shape, "int32")
    seeds = np.arange(2 * NUM_STEPS, dtype="int32").reshape(NUM_STEPS, 2)
    results, memory = {}, model.initial_memory(NUM_ROWS)
    for number, tokens in enumerate(segments[:3]):
        log_probs, memory = log_probs_of(tokens[:, :-1], memory)
        results[f"forward/{number}"] = sample(log_probs)
        for index, tensor in enumerate(keras.tree.flatten(memory)):
            results[f"memory/{number}/{index}"] = sample(tensor)
    losses = []
    for tokens, seed in zip(segments, seeds, strict=True):
        loss, memory, gradients = train(tokens, memory, seed)
        if not losses:
            first = gradients
        losses.append(loss)
    for weight, gradient in zip(model.trainable_variables, first, strict=True):
        results[f"gradients/{weight.path}"] = sample(gradient)
        norm = np.linalg.norm(np.float64(ops.convert_to_numpy(gradient)))
        results[f"gradients/{weight.path}/norm"] = np.float32([norm])
    results["losses"] = np.float32([float(loss) for loss in losses])
    return results


def dropout_masks():
    """Returns dropout masks of all shapes and seeds, as packed bits."""
    dropout = SeededDropout(0.1)
    masks = {}
    for shape in MASK_SHAPES:
        for seed in MASK_SEEDS:
            outputs = dropout(ops.ones(shape), seed=np.array(seed, "int32"), training=True)
            masks[f"masks/{shape}/{seed}"] = np.packbits(ops.convert_to_numpy(outputs) != 0)
    return masks


def write(path, models, dtypes):
    """Writes configurations and the results of TensorFlow to a file."""
    configs = {
        f"{name}/{dtype}": [dtype, config.to_dict()]
        for name, config in models.items()
        for dtype in dtypes
    }
    arrays = {
        f"{name}/{key}": array
        for name, (dtype, values) in configs.items()
        for key, array in results_of(ModelConfig.from_dict(values), dtype).items()
    }
    np.savez_compressed(path, configs=json.dumps(configs), **arrays, **dropout_masks())


def compare(path):
    """Yields the largest relative differences between results and the results in a file."""
    import jax

    expected = np.load(path, allow_pickle=False)
    masks = dropout_masks()
    yield {
        "device": jax.devices()[0].device_kind,
        "masks_identical": all(np.array_equal(mask, expected[key]) for key, mask in masks.items()),
    }
    for name, (dtype, values) in json.loads(str(expected["configs"])).items():
        precision = "highest" if dtype == "float32" else "default"
        with jax.default_matmul_precision(precision):
            results = results_of(ModelConfig.from_dict(values), dtype)
        differences: dict[str, float] = {}
        for key, result in results.items():
            array = expected[f"{name}/{key}"]
            difference = np.abs(result - array).max() / max(np.abs(array).max(), 1e-30)
            kind = key.split("/")[0]
            differences[kind] = max(differences.get(kind, 0.0), float(difference))
        yield {name: differences}


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], MODELS, DTYPES)
    else:
        for report in compare(sys.argv[2]):
            print(json.dumps(report), flush=True)
