"""Executes programs of TPUStrategy on as many devices of a host, by JAX's client."""

import jax
import numpy as np
import tensorflow as tf
from jax._src.lib import _jax, xla_client
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tensorflow.compiler.xla.service import hlo_pb2

from tests.small_models import NUM_TOKENS, toy_text
from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.replica_rows import ReplicaRows
from txl_tf.tpu_compiler.replica_program import ReplicaProgram

# Rows that no number of replicas shares out equally.
NUM_ROWS = 9


class CompiledReplicas:
    """A compiled program, and the state of each replica on a device.

    `outputs` has for each output the number of the argument that it replaces, `None` for results;
    `state`, for each argument after the data, an array per replica.
    """

    def __init__(self, stablehlo, outputs, state, num_replicas):
        self._outputs = outputs
        self._devices = jax.devices()[:num_replicas]
        self._sharding = NamedSharding(Mesh(np.array(self._devices), ["replica"]), PartitionSpec())
        compile_options = xla_client.CompileOptions()
        compile_options.num_replicas = num_replicas
        compile_options.num_partitions = 1
        compile_options.device_assignment = xla_client.DeviceAssignment.create(
            np.array([[device.id] for device in self._devices])
        )
        compile_options.env_option_overrides = [
            # Without it, compilers leave out some of the program's roundings to bfloat16.
            ("xla_allow_excess_precision", False),
        ]
        self._executable = self._devices[0].client.compile_and_load(
            stablehlo, _jax.DeviceList(tuple(self._devices)), compile_options
        )
        self._state = list(map(self._spread, state))

    def __call__(self, data):
        """Runs the program once; `data` and results are lists of an array per replica."""
        outputs = self._executable.execute_sharded([*map(self._spread, data), *self._state])
        results = []
        by_output = outputs.disassemble_into_single_device_arrays()
        for argument, parts in zip(self._outputs, by_output, strict=True):
            if argument is None:
                results.append([np.asarray(part) for part in parts])
            else:
                self._state[argument - len(data)] = self._joined(parts)
        return results

    def state(self):
        """For each argument of state, an array per replica."""
        return [[np.asarray(part.data) for part in each.addressable_shards] for each in self._state]

    def _spread(self, parts):
        return self._joined(list(map(jax.device_put, parts, self._devices)))

    def _joined(self, parts):
        return jax.make_array_from_single_device_arrays(parts[0].shape, self._sharding, parts)


def replaced_parameters(hlo):
    """The parameter that each output replaces, `None` for a result."""
    module = hlo_pb2.HloModuleProto.FromString(hlo)
    replaced = {
        tuple(entry.output_shape_index): entry.parameter_number
        for entry in module.input_output_alias.entries
    }
    # A program with one output has no tuple.
    num_outputs = len(module.host_program_shape.result.tuple_shapes) or 1
    return [replaced.get((index,), replaced.get(())) for index in range(num_outputs)]


def read_variable(handle):
    """The value of a variable."""
    dtype = handle._handle_data.shape_and_type[0].dtype
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).numpy()


class HostReplicas:
    """A compiled `ReplicaProgram` with the variables of every replica.

    Must be made before anything else of the process uses JAX, with as many CPU devices as
    replicas: `prepare`.
    """

    def __init__(self, program):
        self._program = program
        lowered = program.lower()
        self._replicas = CompiledReplicas(
            lowered.to_stablehlo(),
            replaced_parameters(lowered.hlo),
            [list(map(read_variable, handles)) for handles in program.variables.values()],
            program.num_replicas,
        )

    def __call__(self, *arguments):
        """Runs the program once."""
        numbers = np.arange(self._program.num_replicas, dtype=np.int32)
        by_place = [list(numbers), *arguments]
        places = [
            int(name.rpartition("input")[2].removesuffix(":0")) for name in self._program.data
        ]
        return self._replicas([by_place[place] for place in places])

    def write_back(self):
        """Gives TensorFlow's variables the values that they have here."""
        state = self._replicas.state()
        for handles, parts in zip(self._program.variables.values(), state, strict=True):
            for handle, part in zip(handles, parts, strict=True):
                tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(part))


def prepare(num_replicas):
    """Must be called before JAX is used."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", num_replicas)
    # Without it, int64 would be cut off.
    jax.config.update("jax_enable_x64", True)


def evaluation_differences(runs, experiment):
    """Relative differences of the total nats, with documents together and apart."""
    weights = runs.trainers["mirrored"].state.inference_weights()
    text = toy_text(experiment.model.vocabulary_size)
    return {
        kind: relative_difference(runs, experiment, weights, text, masks_documents)
        for kind, masks_documents in (("documents together", False), ("documents apart", True))
    }


def relative_difference(runs, experiment, weights, text, masks_documents):
    evaluators = {
        name: Evaluator(
            experiment.model,
            EvaluationConfig(
                batch_size=NUM_ROWS,
                warm_up_tokens=0,
                dtype_policy=experiment.training.dtype_policy,
                attention_kernel=experiment.training.attention_kernel,
            ),
            masks_documents=masks_documents,
            strategy=strategy,
        )
        for name, strategy in runs.strategies.items()
    }
    has_kernel = evaluators["tpu"].attention_choice(NUM_ROWS).kernel is not None
    assert has_kernel == (experiment.training.attention_kernel == "always")
    for evaluator in evaluators.values():
        evaluator.load_arrays(weights)
    theirs = evaluators["mirrored"].evaluate(text, step=0)
    ours, count = executed_nats(evaluators["tpu"], text, runs.strategies["tpu"])
    assert count == theirs.num_tokens == NUM_TOKENS
    return abs(ours - theirs.total_nats) / theirs.total_nats


def executed_nats(evaluator, text, strategy):
    """What `Evaluator.evaluate` sums up, by programs that are executed on their own."""
    rows = evaluator._order(text.num_tokens, None)
    shares = ReplicaRows(strategy, rows.batch_size)
    functions = evaluator.trace(rows.batch_size, rows.segments_per_step)
    begin, score = (HostReplicas(ReplicaProgram.of(function)) for function in functions)
    memory_leaves, constant_leaves = map(tf.nest.flatten, functions[0].structured_outputs)
    results = iter(begin())
    num_replicas = strategy.num_replicas_in_sync
    memory = filled(memory_leaves, results, num_replicas)
    constants = filled(constant_leaves, results, num_replicas)
    total, count = 0.0, 0
    for batch in rows.batches(text):
        arrays = batch.token_ids, batch.target_ids, batch.is_scored, batch.document_starts
        parts = [parts_of(each, shares.rows_per_replica, num_replicas) for each in arrays]
        nll, *results = score(*parts, *memory, *constants)
        memory = filled(memory_leaves, iter(results), num_replicas)
        whole = np.concatenate(nll)[: rows.batch_size]
        total += float(np.sum(whole[batch.is_scored].astype(np.float64)))
        count += int(np.sum(batch.is_scored))
    return total, count


def filled(leaves, values, num_replicas):
    """Leaves with the next values; a leaf `None` has no result and becomes zeros."""
    nothing = [np.int32(0)] * num_replicas
    return [nothing if leaf is None else next(values) for leaf in leaves]


def parts_of(array, rows_per_replica, num_replicas):
    padding = rows_per_replica * num_replicas - len(array)
    padded = np.pad(array, [(0, padding), (0, 0)])
    return np.split(padded, num_replicas)
