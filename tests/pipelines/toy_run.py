"""The real training run with steps that cost nothing.

Every writer is real: folder, lock, checkpoints, ledger, events, the note of
the best. A step computes a few numbers, which depend on all steps
before.
"""

import contextlib
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import tensorflow as tf

from pipelines.run.run_data import RunData
from pipelines.run.training_data import TrainingData
from pipelines.run.training_job import TrainingJob
from pipelines.run.training_run import train as train_run
from tests.small_models import small_result, toy_experiment
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.data.segment_plan import SegmentPlan
from txl_tf.evaluation.result import EvaluationResult
from txl_tf.model_folder import Workdir, data_identity
from txl_tf.storage.files import list_folder, read_file
from txl_tf.training.checkpoints.checkpoint_files import read_checkpoint
from txl_tf.training.ledger import LoopReport, StepRecord, StepStatus

NUM_STEPS = 24
CHECKPOINT_EVERY_STEPS = 4
VOCABULARY = {"vocabulary.txt": b"a\nb\nc\n"}


def toy_run_experiment(**changes) -> ExperimentConfig:
    """A run that saves and evaluates often."""
    experiment = toy_experiment()
    training = {
        "num_steps": NUM_STEPS,
        "steps_per_loop": 2,
        "checkpoint_every_steps": CHECKPOINT_EVERY_STEPS,
        "evaluate_every_steps": 6,
        "num_kept_checkpoints": 2,
    }
    return experiment.replace(
        training=dataclasses.replace(experiment.training, **{**training, **changes})
    )


class ToyTrainer:
    """Stands for `Trainer`: the same methods, and numbers instead of a model."""

    num_workers = 1

    def __init__(self, experiment, *unused) -> None:
        self._training = experiment.training
        self._stops = False
        self.step = 0
        self._weights = np.linspace(0.5, 1.5, 16, dtype="float32")
        self._memory = np.zeros((2, 8), "float32")

    def take_steps(self):
        """Steps to the next checkpoint, a few at a time."""
        records = []
        for _ in range(self.next_stop - self.step):
            self._take_step()
            checksum = int(self._weights.view("uint32").sum()) % 2**32
            loss = float(np.float32(5.0 / self.step + abs(self._weights[0])))
            records.append(
                StepRecord(
                    step=self.step,
                    nats_per_token=loss,
                    gradient_norm=float(self._weights[1]),
                    checksum=checksum,
                    status=StepStatus.APPLIED,
                )
            )
        return LoopReport(
            records=tuple(records),
            num_tokens=len(records),
            learning_rate=0.1,
            seconds=0.01,
            has_compiled=False,
        )

    @property
    def next_stop(self) -> int:
        """Steps done at the end of the next loop."""
        stop = self.step + self._training.steps_per_loop
        period = self._training.checkpoint_every_steps
        return min(stop, (self.step // period + 1) * period)

    def _take_step(self) -> None:
        self.step += 1
        self._memory = np.tanh(np.roll(self._memory, 1, axis=1) + self._weights[:8])
        pull = np.float32(0.01) * self._memory.mean() + np.float32(1e-3) * np.sin(self.step)
        self._weights = (self._weights * np.float32(0.999) + pull).astype("float32")

    def arrays(self) -> dict[str, np.ndarray]:
        """The state that decides the next step."""
        return {
            "model/weights": self._weights,
            "memory/states": self._memory,
            "step": np.asarray(self.step, np.int64),
        }

    def load_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        """Restores the result of `arrays`."""
        self._weights = arrays["model/weights"]
        self._memory = arrays["memory/states"]
        self.step = int(arrays["step"])

    def must_stop(self) -> bool:
        return self._stops

    def request_stop(self) -> None:
        self._stops = True

    def sum_over_workers(self, value: float) -> float:
        return value


class ToyData(RunData):
    """Stands for `TrainingData`."""

    folder = None
    has_valid = True
    bytes_per_token = 1.0
    tokenizer = SimpleNamespace(vocabulary_files=VOCABULARY)
    objective_class = None
    reader = SimpleNamespace(dataset_fn=None, describe_row=None)
    manifest = SimpleNamespace(
        fingerprint="f" * 64,
        corpus_name="toy",
        tokenizer_kind="characters",
        tokenizer_sha256="a" * 64,
        vocabulary_size=13,
    )
    identity = data_identity(manifest)
    language_text = None
    plan = SegmentPlan(
        num_tokens=4000, num_rows=4, segment_length=5, seed=1, fingerprint="f" * 64, rotate=True
    )

    def evaluate(self, evaluator, step: int, track, max_tokens=None) -> EvaluationResult:
        # The best one is the third of four.
        nats = float(np.float32(4.0 - 0.1 * step if step <= 18 else 3.0))
        return small_result(
            step=step,
            total_nats=nats * 100,
            num_tokens=100,
            num_bytes=100.0,
            num_characters=100.0,
            num_words=20.0,
        )

    describe_plan = TrainingData.describe_plan
    count_tokens = TrainingData.count_tokens
    describe_loss = staticmethod(lambda nats: f"{nats:.4f}")

    def describe_short(self, result: EvaluationResult) -> str:
        return self.describe_loss(result.nats_per_token)

    def describe_result(self, result: EvaluationResult, is_last: bool) -> str:
        return str(result)


def train(workdir: str | Path, experiment: ExperimentConfig | None = None, watcher=None) -> None:
    """What `txl train` does, inside `toy_training`."""
    folder = Workdir(str(workdir))
    folder.check_usable()
    job = TrainingJob(
        experiment=experiment or toy_run_experiment(),
        data=ToyData(),
        workdir=folder,
        strategy=tf.distribute.get_strategy(),
        watcher=watcher,
    )
    train_run(job)


@contextlib.contextmanager
def toy_training():
    """Lets `train` run, with neither model nor output."""
    with (
        mock.patch("pipelines.run.training_run.Trainer", ToyTrainer),
        mock.patch("pipelines.run.training_run.TrainingProgress"),
        mock.patch("pipelines.run.training_run.RunFigures.write_overview"),
        mock.patch("pipelines.run.training_run.RunFigures.observe"),
        mock.patch("pipelines.run.training_run.TrainingRun.ready_evaluator"),
    ):
        yield


@contextlib.contextmanager
def stopping_after(num_steps: int, error: type[Exception]):
    """Raises an error as soon as `num_steps` steps have been reported."""
    take_steps = ToyTrainer.take_steps

    def stopping(trainer, **arguments):
        # When the report is dealt with.
        if trainer.step >= num_steps:
            raise error
        return take_steps(trainer, **arguments)

    with mock.patch.object(ToyTrainer, "take_steps", stopping):
        yield


def result_of(workdir: str | Path) -> dict[str, object]:
    """Ledger, note of the best and arrays of all checkpoints of a run, bit for bit."""
    workdir = str(workdir)
    parts = [f"{workdir}/ledger/{name}" for name in list_folder(f"{workdir}/ledger")]
    ledger = b"".join(read_file(part) for part in parts or [f"{workdir}/ledger.jsonl"])
    result: dict[str, object] = {"ledger": ledger}
    steps = [name for name in list_folder(f"{workdir}/checkpoints") if name.startswith("step-")]
    assert f"step-{NUM_STEPS:08d}" in steps
    for step in steps:
        _, arrays = read_checkpoint(f"{workdir}/checkpoints/{step}")
        result |= {f"{step}/{name}": array.tobytes() for name, array in arrays.items()}
    result["best"] = read_file(f"{workdir}/checkpoints/best.json")
    result["vocabulary"] = read_file(f"{workdir}/vocabulary/vocabulary.txt")
    return result


def contents_of(folder: str | Path) -> dict[Path, bytes]:
    """All files of a local folder without TensorBoard's."""
    files = (path for path in Path(folder).rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files if "tensorboard" not in path.parts}
