"""Banner of a training run: model, devices, steps, rate, and where its figures are."""

from txl_tf.distribution.mesh_strategy import MeshStrategy
from txl_tf.distribution.strategy import AnyStrategy, num_workers
from txl_tf.model_folder import RunStart
from txl_tf.models.sizes import num_embedding_parameters, num_parameters
from txl_tf.training.train_state import attention_choice

from ..shell.progress import plain_table
from .precision import device_kind
from .training_job import TrainingJob


def start_banner(job: TrainingJob, start: RunStart | None) -> str:
    """Returns the lines that a run prints before its first step."""
    model, training, strategy = job.experiment.model, job.experiment.training, job.strategy
    optimizer = job.experiment.optimizer
    step, passes = job.data.describe_plan()
    num_passes = training.num_steps / job.data.plan.steps_per_epoch
    rows = {
        "model": f"{num_parameters(model):,} parameters, {num_embedding_parameters(model):,} of "
        "them embeddings",
        "devices": f"{_devices(strategy)}, {training.dtype_policy}",
        "attention": None,
        "step": step,
        "length": f"{training.num_steps:,} steps, {num_passes:.3g} {passes}",
        "rate": f"{optimizer.learning_rate:g} ({optimizer.name}), {optimizer.schedule}, "
        f"{optimizer.warmup_steps:,} steps of warm-up",
        "begins": None if start is None else f"{start}: weights only, all settings as here",
        "frozen": ", ".join(training.freeze or ()) or None,
        "adapters": None,
        "run": job.workdir.folder,
        "curves": f"tensorboard --logdir {job.workdir.tensorboard}",
    }
    # Only TPUs have more than one implementation.
    if device_kind(strategy) == "TPU":
        rows["attention"] = attention_choice(job.experiment, strategy).reason
    if (rank := training.adapter_rank) is not None:
        alpha = training.adapter_alpha or rank
        rows["adapters"] = f"rank {rank}, alpha {alpha:g}; all other weights are frozen"
    return plain_table([(name, text) for name, text in rows.items() if text is not None])


def _devices(strategy: AnyStrategy) -> str:
    num_replicas, num_processes = strategy.num_replicas_in_sync, num_workers(strategy)
    kind, backend = device_kind(strategy), ""
    if isinstance(strategy, MeshStrategy):
        backend = ", JAX"
    elif num_replicas > 1 and kind != "TPU":  # `--cpu-replicas` leaves a GPU idle
        kind = strategy.extended.worker_devices[0].split("device:")[-1].split(":")[0]
    replicas = "1 replica" if num_replicas == 1 else f"{num_replicas} replicas"
    processes = f" of {num_processes} processes" if num_processes > 1 else ""
    return f"{replicas} on {kind}{processes}{backend}"
