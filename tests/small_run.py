"""An untrained run, begun as `txl train` begins one."""

from pathlib import Path

from tests.toy_batches import toy_experiment
from txl_tf.config.experiment import EvaluationConfig
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.model_folder import RunDescription, Workdir, data_identity
from txl_tf.models.transformer_xl import TransformerXL


def write_run(folder: Path, tokenizer: Tokenizer, text: str) -> tuple[Workdir, Path]:
    """Writes a data set and a run with one checkpoint, which is its best."""
    manifest = prepare_dataset({"valid": [text.encode()]}, tokenizer, str(folder / "data"), "toy")
    data = data_identity(manifest)
    experiment = toy_experiment(model={"vocabulary_size": manifest.vocabulary_size})
    experiment = experiment.replace(evaluation=EvaluationConfig(batch_size=2))
    workdir = Workdir(folder / "run")
    run = workdir.begin(experiment, data)
    workdir.keep_vocabulary(tokenizer.vocabulary_files)
    weights = TransformerXL(experiment.model).weights
    store = run.checkpoints(workdir.folder)
    store.save(7, {f"model/{variable.path}": variable.numpy() for variable in weights})
    store.keep_best(7)
    return workdir, folder / "data"


def checkpoints_of(folder):
    """The checkpoints of the run in a folder."""
    return RunDescription.read(str(folder)).checkpoints(str(folder))


def last_state_of(folder):
    """The ledger and the arrays of the last checkpoint of a run, bit for bit."""
    store = checkpoints_of(folder)
    arrays = store.load(store.steps()[-1])
    state = {name: (array.dtype, array.tobytes()) for name, array in arrays.items()}
    return (Path(folder) / "ledger.jsonl").read_bytes(), state
