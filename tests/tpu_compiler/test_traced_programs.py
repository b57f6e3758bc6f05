"""Programs of TPUStrategy, up to what every replica runs, and what a TPU would refuse."""

import collections

import pytest

from pipelines.jobs.doctor import sum_of_replicas
from tests.slow_case import slow_case
from tests.small_models import VOCABULARY_SIZE, ToyBatches, toy_experiment, toy_tokens
from tests.tpu_compiler.tpu_bridge import (
    COLLECTIVES,
    NUM_REPLICAS,
    assert_runs_on_replicas,
    through_the_bridge,
    traced_replicas,
)
from tests.training.task_experiments import task_experiment, task_reader
from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.config.model import LSTMConfig, QRNNConfig
from txl_tf.distribution.strategy import set_chip
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.training.objectives.task_objective import TaskObjective
from txl_tf.training.objectives.text_objective import TextObjective
from txl_tf.training.trainer import Trainer

# One row of the second replica is made up.
NUM_ROWS = 2 * NUM_REPLICAS - 1
CLUSTERS = {"cutoffs": (4, 9), "division_factor": 2, "embedding_dim": 8}
RECURRENT = {"vocabulary_size": VOCABULARY_SIZE, "hidden_dim": 8, "segment_length": 5}


def experiment(model=None, training=None, optimizer=None, recurrent=None):
    toy = toy_experiment(
        model, {"global_batch_size": NUM_ROWS, "steps_per_loop": 5, **(training or {})}, None
    )
    changed = toy.optimizer.to_dict() | {"learning_rate": 1e-3} | (optimizer or {})
    if changed["name"] == "sgd":
        changed["epsilon"] = 1e-8
    toy = toy.replace(optimizer=type(toy.optimizer).from_dict(changed))
    return toy if recurrent is None else toy.replace(model=recurrent)


class DocumentBatches(ToyBatches):
    """Batches that say where documents begin."""

    def batch(self, step):
        values = super().batch(step)
        return values | {"document_starts": values["token_ids"] == 0}


CONFIGURATIONS = {
    "adam": experiment({"dropout": 0.1}, {"average_weights_from_step": 2}),
    "adamw": experiment(
        {"dropout": 0.1, "attention_dropout": 0.1, "pre_norm": True, **CLUSTERS},
        {
            "dtype_policy": "mixed_bfloat16",
            "rematerialize": True,
            "gradient_accumulation_steps": 2,
            "document_boundaries": "mask",
            "average_weights_from_step": 2,
            "average_weights_decay": 0.9,
        },
        {"name": "adamw", "weight_decay": 0.01},
    ),
    "frozen": experiment(
        {"num_layers": 2, "dropout": 0.1, **CLUSTERS},
        {"freeze": ("embedding", "layers:0"), "average_weights_from_step": 2},
        {"name": "adamw", "weight_decay": 0.01},
    ),
    "adapters": experiment(
        {"num_layers": 2, "dropout": 0.1, **CLUSTERS},
        {"adapter_rank": 2, "dtype_policy": "mixed_bfloat16", "rematerialize": True},
        {"name": "adamw", "weight_decay": 0.01},
    ),
    "lamb": experiment(
        {"num_layers": 2, **CLUSTERS},
        {"on_non_finite": "skip"},
        {"name": "lamb", "max_weight_norm": 10.0, "weight_decay": 0.01},
    ),
    "muon": experiment(
        {"position_encoding": "shaw", "num_positions": 4},
        None,
        {"name": "muon", "weight_decay": 0.01, "schedule": "inverse_square_root"},
    ),
    "lstm": experiment(
        None,
        None,
        {"name": "adamw", "weight_decay": 0.01, "schedule": "wsd"},
        LSTMConfig(num_layers=2, dropout=0.1, **RECURRENT),
    ),
    "sgd": experiment(
        None,
        {"gradient_accumulation_steps": 2},
        {"name": "sgd", "momentum": 0.9, "weight_decay": 0.01},
        QRNNConfig(num_layers=2, dropout=0.1, **RECURRENT),
    ),
    "task": task_experiment(
        "classification",
        training={"global_batch_size": NUM_ROWS, "average_weights_from_step": 2},
    ),
}


def dataset_function_of(chosen):
    if chosen.task is not None:
        return task_reader(chosen)[1].dataset_fn
    has_documents = chosen.training.document_boundaries == "mask"
    batches = (DocumentBatches if has_documents else ToyBatches)(toy_tokens(), NUM_ROWS)
    return batches.dataset_function


# The other configurations have the same parts, or these take longest to trace.
SLOW = ("adam", "adapters", "frozen", "lamb", "lstm", "muon", "sgd", "task")
PLAIN = [name for name in CONFIGURATIONS if name not in SLOW]


@pytest.fixture(scope="module", params=[*PLAIN, *map(slow_case, SLOW)])
def traced(request):
    """A trainer under TPUStrategy, and what the bridge makes of its loop."""
    chosen = CONFIGURATIONS[request.param]
    objective = TextObjective if chosen.task is None else TaskObjective
    batches = dataset_function_of(chosen)
    trainer = Trainer(chosen, traced_replicas(), batches, objective_class=objective)
    return trainer, through_the_bridge(trainer.trace())


def test_the_loop_is_one_program_per_replica_that_draws_no_random_numbers(traced):
    trainer, program = traced
    assert_runs_on_replicas(program)
    assert program.num_written > 0
    assert not [each for each in program.cluster_operations if "Random" in each]
    # No worker is asked where there is one.
    assert trainer.sum_over_workers(0.25) == 0.25


def could_be(shape, other):
    """True if a shape, with `"?"` for unknown sizes, may equal another."""
    sizes = zip(shape, other, strict=False)
    return len(shape) == len(other) and all(first in ("?", second) for first, second in sizes)


def test_gradients_and_the_loss_are_summed_once_and_nothing_else_is(traced):
    trainer, program = traced
    used = COLLECTIVES & program.cluster_operations.keys()
    assert used == {"tf.CrossReplicaSum"}
    expected = [(), *(tuple(map(str, each.shape)) for each in trainer.state.trainable)]
    # TensorFlow loses sight of some sizes in loops, the compiler does not.
    assert len(program.summed_shapes) == len(expected)
    shapes = collections.Counter(each for each in program.summed_shapes if "?" not in each)
    assert shapes <= collections.Counter(expected)
    # It loses the rank of the gradient of a low-rank factor.
    num_factors = sum("/lora_kernel_" in each.path for each in trainer.state.trainable)
    assert shapes.total() >= len(expected) - 3 - num_factors
    for shape in program.summed_shapes:
        assert any(could_be(shape, each) for each in expected), shape


def test_attention_is_a_kernel_where_the_chip_can_and_the_run_lets_it():
    chosen = experiment({"attention_dropout": 0.1}, {"attention_kernel": "always"})
    strategy, batches = traced_replicas(), ToyBatches(toy_tokens(), NUM_ROWS)
    set_chip(strategy, "v5e")
    try:
        program = through_the_bridge(Trainer(chosen, strategy, batches.dataset_function).trace())
    finally:
        set_chip(strategy, "")
    assert_runs_on_replicas(program)
    # Forwards and backwards.
    assert program.cluster_operations["tf.XlaCallModule"] == 2 * chosen.model.num_layers


MODEL = toy_experiment().model
LSTM = LSTMConfig(num_layers=2, **RECURRENT)
EVALUATIONS = {
    "keys and values": (MODEL, {"memory_length": 9}, "float32", False),
    "documents apart": (MODEL, {"warm_up_tokens": "all"}, "mixed_bfloat16", True),
    "recurrent memory": (LSTM, {}, "float32", False),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_an_evaluation_is_two_programs_without_communication(name):
    model, values, policy, masks_documents = EVALUATIONS[name]
    evaluator = Evaluator(
        model,
        EvaluationConfig(batch_size=NUM_ROWS, dtype_policy=policy, **values),
        masks_documents=masks_documents,
        strategy=traced_replicas(),
    )
    for function in evaluator.trace(NUM_ROWS):
        program = through_the_bridge(function)
        assert_runs_on_replicas(program)
        assert program.num_written == 0
        assert not COLLECTIVES & program.cluster_operations.keys()


@pytest.mark.parametrize(
    ("values", "chip", "is_kernel"),
    [
        ({"attention_kernel": "always"}, "v5e", True),
        ({"attention_kernel": "always", "memory_length": 0}, "v5e", True),
        ({"memory_length": 8_000}, "v5e", True),
        ({"attention_kernel": "always"}, "v3", False),
        ({"attention_kernel": "never", "memory_length": 8_000}, "v5e", False),
        ({}, "v5e", False),
    ],
)
def test_an_evaluation_attends_by_a_kernel_where_the_chip_can_and_it_pays(values, chip, is_kernel):
    strategy = traced_replicas()
    set_chip(strategy, chip)
    evaluation = EvaluationConfig(batch_size=NUM_ROWS, **values)
    try:
        evaluator = Evaluator(MODEL, evaluation, strategy=strategy, masks_documents=True)
        reason = evaluator.attention_choice(NUM_ROWS).reason
        _, step = evaluator.trace(NUM_ROWS)
        program = through_the_bridge(step)
    finally:
        set_chip(strategy, "")
    assert_runs_on_replicas(program)
    assert program.cluster_operations["tf.XlaCallModule"] == MODEL.num_layers * is_kernel
    assert reason.startswith("kernel" if is_kernel else "plain operations: ")


def test_the_sum_that_doctor_tries_is_one_program():
    program = through_the_bridge(sum_of_replicas(traced_replicas()).get_concrete_function())
    assert_runs_on_replicas(program)
    assert program.summed_shapes == [()]
