"""What is to be launched, as the renderers of `txl launch` take it."""

import dataclasses

from pipelines.launch.accelerator import Accelerator


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """A training job and the TPU it is to run on; every field was checked."""

    name: str
    """Of the TPU, the queued resource or the job set."""
    accelerator: Accelerator
    """The slice."""
    zone: str
    """Zone of Google Cloud."""
    project: str
    """Project of Google Cloud."""
    config: str
    """Name of an experiment."""
    overrides: tuple[str, ...]
    """Values of `--set`."""
    data: str
    """A prepared data set, `gs://`."""
    workdir: str
    """Folder of the run, `gs://`."""
    runtime_version: str
    """Image of the TPU VMs."""
    is_spot: bool
    """Whether the machines may be taken away."""
    repository: str | None
    """What the code is cloned from; `None`: the checkout at hand is copied."""
    image: str | None
    """Container image, for GKE."""

    @property
    def tensorboard(self) -> str:
        """Folder for `tensorboard --logdir`."""
        return f"{self.workdir.rstrip('/')}/tensorboard"
