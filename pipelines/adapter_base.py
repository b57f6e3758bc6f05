"""Frozen weights of a run with adapters: written once, read at every resume."""

from typing import TYPE_CHECKING

from txl_tf.adapter_base import BASE, read_base
from txl_tf.config.model import ModelConfig
from txl_tf.converted_folder import write_converted
from txl_tf.run_folder import run_folder_error
from txl_tf.storage.writable_folder import WritableFolder

if TYPE_CHECKING:
    from txl_tf.run_description import RunDescription
    from txl_tf.training.trainer import Trainer


def write_base(trainer: "Trainer", folder: WritableFolder) -> None:
    """Writes the frozen weights of a run with adapters, before its first checkpoint.

    Replaces what a killed process left. Does nothing if checkpoints hold all weights.
    """
    from txl_tf.convert.model_building import named_variables

    frozen = trainer.frozen_weights()
    if not frozen:
        return
    names = {variable.path: name for name, variable in named_variables(trainer.model).items()}
    arrays = {names[path]: array for path, array in frozen.items()}
    config = trainer.config.model
    assert isinstance(config, ModelConfig)  # only this model has adapters
    try:
        folder.remove_folder(BASE)
        write_converted(folder.subfolder(BASE), config, arrays)
    except OSError as error:
        raise run_folder_error(folder.path, "written", error) from error


def load_base(trainer: "Trainer", folder: str, described: "RunDescription") -> None:
    """Restores the frozen weights of a run with adapters; does nothing for other runs."""
    if described.experiment.training.adapter_rank is not None:
        trainer.begin_from(read_base(folder, described))
