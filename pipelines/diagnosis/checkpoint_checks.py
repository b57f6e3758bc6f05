"""Checks whether checkpoints fit the time and the room that there is for them."""

import shutil
import tempfile
from collections.abc import Iterator

from pipelines.diagnosis.finding import Finding
from txl_tf.training.checkpoint_cost import NOTICE_SECONDS, CheckpointCost

_GIGABYTE = 1e9


def check_checkpoints(cost: CheckpointCost, free_bytes: int | None = None) -> Iterator[Finding]:
    """Checks the checkpoints of an experiment.

    Args:
        cost: `CheckpointCost`.
        free_bytes: optional int. Room in the folder for temporary files;
            looked up by default.

    Yields:
        A `Finding` for the time and one for the room.
    """
    what = f"{cost.num_bytes / _GIGABYTE:.1f} GB, about {cost.upload_seconds:.0f} s to a store"
    if cost.fits_notice:
        yield Finding.ok("checkpoint time", what)
    else:
        yield Finding.warning(
            "checkpoint time",
            f"{what}; a spot VM is given {NOTICE_SECONDS:.0f} s",
            "--set training.checkpoint_every_steps=N: the steps since the last one are lost",
        )
    folder = tempfile.gettempdir()
    if free_bytes is None:
        free_bytes = shutil.disk_usage(folder).free
    room = f"{free_bytes / _GIGABYTE:.1f} GB free in {folder}"
    if free_bytes > cost.local_bytes:
        yield Finding.ok("checkpoint room", room)
    else:
        yield Finding.warning(
            "checkpoint room",
            f"only {room}; TensorFlow writes a checkpoint for a store there first",
            f"df -h {folder}, and remove something",
        )
