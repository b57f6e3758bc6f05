"""Lowers a small training step through TensorFlow's TPU wheel; prints counts of operations.

    python -m tests.pipelines.lower_for_tpu

Runs in an environment where what a TPU VM installs is installed; there need be no TPU.
"""

import collections
import json

import keras
import tensorflow as tf
import tensorflow_text as tf_text
from tensorflow.compiler.xla.service import hlo_pb2
from tensorflow.python.tpu.ops import tpu_ops

import txl_tf
from txl_tf.models.memory import Memory
from txl_tf.tpu_kernels.kernel_choice import AttentionKernel

ROWS = 2
NUM_REPLICAS = 4
LEARNING_RATE = 0.1


def small_model():
    """A model with every kind of weight that the published ones have, and the attention kernel."""
    config = txl_tf.ModelConfig(
        vocabulary_size=50,
        num_layers=2,
        hidden_dim=16,
        num_heads=2,
        head_dim=8,
        intermediate_dim=32,
        segment_length=8,
        memory_length=8,
        dropout=0.1,
        cutoffs=(20, 35),
        division_factor=2,
    )
    return txl_tf.TransformerXL(config, attention_kernel=AttentionKernel())


def training_step(model):
    """The step as a function of tensors, weights included, and the specs of those."""
    weights = list(model.trainable_variables)
    memory = model.initial_memory(ROWS)
    groups = [list(range(NUM_REPLICAS))]

    def step(token_ids, target_ids, seeds, *state):
        values, state = state[: len(weights)], state[len(weights) :]
        memory = Memory(tuple(state[:-1]), state[-1])
        with tf.GradientTape() as tape, keras.StatelessScope(zip(weights, values, strict=True)):
            tape.watch(values)
            losses, memory = model.score(
                token_ids, target_ids, memory, dropout_seed=seeds, training=True
            )
            loss = tf.reduce_sum(losses) / (NUM_REPLICAS * ROWS)
        gradients = [tf.convert_to_tensor(each) for each in tape.gradient(loss, values)]
        gradients = [tpu_ops.cross_replica_sum(each, groups) for each in gradients]
        gradients, _ = tf.clip_by_global_norm(gradients, 0.25)
        values = [
            value - LEARNING_RATE * gradient
            for value, gradient in zip(values, gradients, strict=True)
        ]
        return tpu_ops.cross_replica_sum(loss, groups), values, tf.nest.flatten(memory)

    tokens = tf.TensorSpec([ROWS, model.config.segment_length], tf.int32)
    state = [tf.TensorSpec(each.shape, each.dtype) for each in weights]
    state += [tf.TensorSpec(each.shape, each.dtype) for each in tf.nest.flatten(memory)]
    return step, [tokens, tokens, tf.TensorSpec([ROWS, 2], tf.int32), *state]


def main():
    model = small_model()
    step, specs = training_step(model)
    function = tf.function(step, jit_compile=True, autograph=False)
    hlo = function.experimental_get_compiler_ir(*specs)(stage="hlo_serialized", platform_name="TPU")
    module = hlo_pb2.HloModuleProto.FromString(hlo)
    instructions = [each for part in module.computations for each in part.instructions]
    sums = [each for each in instructions if each.opcode == "all-reduce"]
    tokens = tf_text.WhitespaceTokenizer().tokenize(["two words"]).to_list()[0]
    report = {
        "versions": [tf.__version__, tf_text.__version__, keras.__version__],
        "num_tokens": len(tokens),
        "num_weights": sum(each.shape.num_elements() for each in specs[3 : 3 + len(model.weights)]),
        "summed": sum(tf.TensorShape(list(each.shape.dimensions)).num_elements() for each in sums),
        "opcodes": collections.Counter(each.opcode for each in instructions),
        "custom_call_targets": sorted({each.custom_call_target for each in instructions} - {""}),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
