"""The folder of TensorBoard's files, for jobs that do not train."""

from collections.abc import Callable

from pipelines.workdir import Workdir
from txl_tf.errors import OutputExistsError
from txl_tf.storage.writable_folder import WritableFolder


def tensorboard_folder(workdir: Workdir, check: Callable[[], None] | None = None) -> WritableFolder:
    """Returns the folder of a run's TensorBoard files, as long as the run is this one.

    An evaluation takes its time. Meanwhile the folder may have been removed,
    and another run begun there, which the figures are not of.

    Args:
        workdir: `Workdir` of a run.
        check: optional function that is called as well before every change,
            and raises an error where writing is not allowed.

    Returns:
        `WritableFolder`, whose changes raise OutputExistsError if another run
        is in the folder.
    """
    begun = _identity(workdir)

    def check_run() -> None:
        if check is not None:
            check()
        if not workdir.has_run() or _identity(workdir) != begun:
            raise OutputExistsError(
                "The run was removed or replaced meanwhile; its figures are not written.",
                where=workdir.folder,
                remedy="Start the same command again for the run that is there now.",
            )

    return WritableFolder.at(workdir.tensorboard, check_run)


def _identity(workdir: Workdir) -> object:
    """Returns the identity of a run; the settings, for runs without an id."""
    described = workdir.describe()
    return described.run_id or (described.experiment, described.data)
