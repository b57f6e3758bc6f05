"""Start of a training run in a few lines: model, devices, step, length, folder."""

from typing import TYPE_CHECKING

from txl_tf.config.experiment import ExperimentConfig, OptimizerConfig
from txl_tf.models.sizes import num_embedding_parameters, num_parameters
from txl_tf.run import RunStart

from .progress import plain_table

if TYPE_CHECKING:
    import tensorflow as tf

    from .run_data import RunData
    from .workdir import Workdir


def start_banner(
    experiment: ExperimentConfig,
    data: "RunData",
    strategy: "tf.distribute.Strategy",
    workdir: "Workdir",
    start: RunStart | None = None,
) -> str:
    """Returns the lines that a run begins with."""
    model, training = experiment.model, experiment.training
    step, passes = data.describe_plan()
    num_passes = training.num_steps / data.plan.steps_per_epoch
    frozen = training.freeze or ()
    adapters = None
    if training.adapter_rank is not None:
        alpha = training.adapter_alpha or training.adapter_rank
        adapters = f"rank {training.adapter_rank}, alpha {alpha:g}; all other weights are frozen"
    begins = [("begins", str(start))] if start is not None else []
    table = (
        (
            "model",
            f"{num_parameters(model):,} parameters, {num_embedding_parameters(model):,} of them "
            "embeddings",
        ),
        ("devices", f"{_devices(strategy)}, {training.dtype_policy}"),
        *_attention(experiment, strategy),
        ("step", step),
        ("length", f"{training.num_steps:,} steps, {num_passes:.3g} {passes}"),
        ("rate", describe_schedule(experiment.optimizer)),
        *begins,
        *([("frozen", ", ".join(frozen))] if frozen else []),
        *([("adapters", adapters)] if adapters is not None else []),
        ("run", workdir.folder),
        ("curves", f"tensorboard --logdir {workdir.tensorboard}"),
    )
    return plain_table(table)


def describe_schedule(optimizer: OptimizerConfig) -> str:
    """Describes the learning rate of a run in a few words."""
    schedule = {
        "cosine": f"cosine to {optimizer.learning_rate * optimizer.final_learning_rate_fraction:g}",
        "inverse_square_root": "inverse square root",
        "constant": "constant",
        "plateau": f"times {optimizer.plateau_factor:g} at each plateau",
    }[optimizer.schedule]
    warm_up = f"{optimizer.warmup_steps:,} steps of warm-up, " if optimizer.warmup_steps else ""
    return f"{optimizer.learning_rate:g} ({optimizer.name}), {warm_up}{schedule}"


def _attention(
    experiment: ExperimentConfig, strategy: "tf.distribute.Strategy"
) -> list[tuple[str, str]]:
    import tensorflow as tf

    from txl_tf.training.train_state import attention_choice

    # Only TPUs have more than one implementation.
    if not isinstance(strategy, tf.distribute.TPUStrategy):
        return []
    return [("attention", attention_choice(experiment, strategy).reason)]


def _devices(strategy: "tf.distribute.Strategy") -> str:
    import tensorflow as tf

    from txl_tf.distribution.strategy import num_workers

    num_replicas, num_processes = strategy.num_replicas_in_sync, num_workers(strategy)
    if isinstance(strategy, tf.distribute.TPUStrategy):
        kind = "TPU"
    elif num_replicas > 1:
        kind = strategy.extended.worker_devices[0].split("device:")[-1].split(":")[0]
    else:
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    replicas = "1 replica" if num_replicas == 1 else f"{num_replicas} replicas"
    processes = f" of {num_processes} processes" if num_processes > 1 else ""
    return f"{replicas} on {kind}{processes}"
