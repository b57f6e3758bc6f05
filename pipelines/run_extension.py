"""Extension of a finished run by more steps."""

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.errors import DataDamagedError
from txl_tf.run_description import RunDescription


def require_steps_before(
    described: RunDescription, experiment: ExperimentConfig, step: int, where: str
) -> None:
    """Raises DataDamagedError where a checkpoint is of the run before it was extended.

    The steps from there to the extension were done with the schedule of a
    shorter run, which this start does not have.

    Args:
        described: `RunDescription` as it was found.
        experiment: `ExperimentConfig` of this start.
        step: int. Steps done at the newest checkpoint that can be read.
        where: str. Folder of the checkpoints.
    """
    num_steps = described.experiment.training.num_steps
    is_longer = experiment.training.num_steps > num_steps
    extended_at = (*described.extended_at, *([num_steps] if is_longer else ()))
    if extended_at and step < extended_at[-1]:
        raise DataDamagedError(
            f"The run is extended at step {extended_at[-1]}, and the last checkpoint that can be "
            f"read is of step {step}.",
            where=where,
            remedy=f"Finish it first with --set training.num_steps={num_steps}."
            if is_longer
            else "Restore a later checkpoint from a copy, or choose a new --workdir.",
        )


def describe_extension(experiment: ExperimentConfig, step: int) -> str:
    """Returns a line on what more steps do to the schedule of a run.

    Args:
        experiment: `ExperimentConfig` with the new number of steps.
        step: int. Steps of the run before.
    """
    from txl_tf.training.optimizers import create_schedule

    optimizer, num_steps = experiment.optimizer, experiment.training.num_steps
    line = f"Extended from {step} to {num_steps} steps."
    if optimizer.schedule == "cosine":
        before, now = (float(create_schedule(optimizer, n, None)(step)) for n in (step, num_steps))
        line += (
            f" The cosine now ends at step {num_steps}: the learning rate jumps from {before:.3g} "
            f"to {now:.3g} and falls again."
        )
    else:
        name = optimizer.schedule.replace("_", " ")
        line += f" The learning rate goes on: the schedule ({name}) does not depend on the steps."
    if experiment.training.intermediate_losses:
        line += f" Intermediate losses are trained on up to step {num_steps // 2} of the new run."
    return line
