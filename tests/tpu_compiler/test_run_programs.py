"""Programs before they are compiled."""

import pytest
import tensorflow as tf
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

from tests.small_models import toy_experiment
from txl_tf.tpu_compiler.run_programs import evaluation_program, traced_trainer, training_program

NUM_REPLICAS = 2
ROWS = 2


def training_of(experiment):
    return instructions_of(training_program(traced_trainer(experiment, NUM_REPLICAS)))


def instructions_of(program):
    module = hlo_pb2.HloModuleProto.FromString(program.hlo)
    return module, [each for part in module.computations for each in part.instructions]


@pytest.fixture(scope="module")
def training():
    experiment = toy_experiment(
        model={"dropout": 0.1}, training={"global_batch_size": NUM_REPLICAS * ROWS}
    )
    return experiment, *training_of(experiment)


def test_a_replica_has_its_rows_updates_variables_in_place_and_draws_no_random_bits(training):
    experiment, module, instructions = training
    token_ids = module.host_program_shape.parameters[3]
    assert list(token_ids.dimensions) == [ROWS, experiment.model.segment_length]
    outputs = module.host_program_shape.result.tuple_shapes
    assert len(module.input_output_alias.entries) == len(outputs) > 0
    # Generators depend on the platform; copies before outputs are left to the compiler.
    assert not [each for each in instructions if each.opcode.startswith(("rng", "copy"))]


@pytest.mark.slow
def test_products_of_float32_are_exact_unless_asked_otherwise(training):
    experiment, _, exact = training
    changed = experiment.training.replace(tensor_float_32=True)
    rounded = training_of(experiment.replace(training=changed))
    tf.config.experimental.enable_tensor_float_32_execution(False)
    programs = {"exact": exact, "rounded": rounded[1]}
    precisions = {
        name: {
            precision
            for each in instructions
            if each.opcode == "dot"
            for precision in each.precision_config.operand_precision
        }
        for name, instructions in programs.items()
    }
    of_name = xla_data_pb2.PrecisionConfig.Precision.Value
    assert precisions == {"exact": {of_name("HIGHEST")}, "rounded": {of_name("DEFAULT")}}


def test_the_evaluation_has_the_rows_and_lengths_of_the_evaluation():
    experiment = toy_experiment()
    changed = experiment.evaluation.replace(batch_size=3, segment_length=4, memory_length=6)
    trainer = traced_trainer(experiment.replace(evaluation=changed), 1)
    module, _ = instructions_of(evaluation_program(trainer))
    shapes = [list(each.dimensions) for each in module.host_program_shape.parameters]
    # Several segments at once, 256 tokens of all rows at most.
    assert shapes[1:4] == [[3, 256 // (3 * 4) * 4]] * 3
    # Memory of keys and of values.
    heads, width = experiment.model.num_heads, experiment.model.head_dim
    assert [3, heads, width, 6] in shapes and [3, heads, 6, width] in shapes
