"""Folders of models and runs: their kinds, their descriptions, and how they are opened and written.

| kind | files |
|---|---|
| "run" | `run.json`, `config.json`, `vocabulary/`, `checkpoints/step-NNNNNNNN/`, perhaps `base/` |
| "checkpoint" | `manifest.json` and `state.data`, in a run or copied from a run |
| "model" | `config.json`, `vocabulary/`, and the files of a checkpoint |
| "export" | a SavedModel, with `config.json` and `vocabulary/` in `assets.extra/` |
| "data set" | `manifest.json`, and the files that it lists |

`txl convert`, `txl download` and `save_to_preset` write a "model". A checkpoint that was copied out
of its run becomes a "model" when the run's `config.json` and `vocabulary/` are put beside its
files.
TensorFlow is imported only when weights are read or written.
"""

from txl_tf.model_folder.descriptions import (
    CHECKPOINTS,
    CONFIG_FILE,
    RUN_FILE,
    ModelDescription,
    RunDescription,
    RunStart,
    check_dataset,
    check_vocabulary_size,
    data_identity,
    deciding_settings,
    open_dataset,
    settings_file,
)
from txl_tf.model_folder.folder import (
    BASE,
    EXTRA,
    GRAPH_FILE,
    ModelFolder,
    StepChoice,
    build_model,
    identify_folder,
    is_keras_file,
    load_model,
    open_model,
    read_base,
    required_tokenizer,
    tokenizer_from,
    write_base,
    write_model_folder,
)
from txl_tf.model_folder.workdir import Workdir, lasting_path

__all__ = [
    "BASE",
    "CHECKPOINTS",
    "CONFIG_FILE",
    "EXTRA",
    "GRAPH_FILE",
    "RUN_FILE",
    "ModelDescription",
    "ModelFolder",
    "RunDescription",
    "RunStart",
    "StepChoice",
    "Workdir",
    "build_model",
    "check_dataset",
    "check_vocabulary_size",
    "data_identity",
    "deciding_settings",
    "identify_folder",
    "is_keras_file",
    "lasting_path",
    "load_model",
    "open_dataset",
    "open_model",
    "read_base",
    "required_tokenizer",
    "settings_file",
    "tokenizer_from",
    "write_base",
    "write_model_folder",
]
