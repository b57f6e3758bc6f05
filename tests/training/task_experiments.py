"""Small experiments of every kind of task, and what trains them."""

from tests.small_models import small_config, strategy_of
from tests.tasks.small_examples import BYTES, example, task_of
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.tasks.encoding import encode_examples
from txl_tf.training.objectives.example_reader import ExamplePlan, ExampleReader
from txl_tf.training.objectives.task_objective import TaskObjective
from txl_tf.training.trainer import Trainer

T = 8
EXAMPLES = {
    "classification": [
        example("x" * (3 + 5 * n), number=n, label=("no", "yes")[n % 2]) for n in range(7)
    ],
    "regression": [example("y" * (2 + 4 * n), label=n / 3) for n in range(7)],
}


def task_experiment(kind, **sections):
    # The large epsilon is for gradients that are nearly 0: Adam would blow up their rounding.
    optimizer = {"learning_rate": 0.01, "epsilon": 1e-3}
    return ExperimentConfig.from_dict(
        {
            "model": small_config(T, T, vocabulary_size=256, num_layers=1, dropout=0.1).to_dict(),
            "training": {
                "global_batch_size": 4,
                "num_steps": 6,
                "steps_per_loop": 3,
                "seed": 1,
                "jit_compile": False,
                **sections.get("training", {}),
            },
            "optimizer": {**optimizer, **sections.get("optimizer", {})},
            "task": task_of(kind, **sections.get("task", {})).to_dict(),
        }
    )


def task_reader(experiment):
    encoded = encode_examples(experiment.task, BYTES, EXAMPLES[experiment.task.kind])
    num_rows = experiment.training.global_batch_size
    plan = ExamplePlan(num_examples=7, num_rows=num_rows, seed=1, fingerprint="f")
    return encoded, ExampleReader(encoded, plan, T)


def task_trainer(experiment, num_replicas=1):
    dataset_fn = task_reader(experiment)[1].dataset_fn
    return Trainer(experiment, strategy_of(num_replicas), dataset_fn, objective_class=TaskObjective)
