"""Holds training curves against those of the official PyTorch code.

    python -m tests.measurements.measure_official_curve --out DIR

`--shared` is the folder with `golden/training_curve_official_pytorch.json` and
`data/enwik8-prefix/enwik8.first4150000`. The same command goes on where it was
stopped; what it compares are the seeds that it names. The order of the data is
the official one to the last byte: 16 rows, each from its own sixteenth of the
text on. Unless `--own-optimizer` is given, the end of the warm-up and Adam's
epsilon are those of the official code too: its warm-up is one step ahead, so it
begins at a hundredth of the peak and not at nothing, and its epsilon is added
after the bias correction and not before. With `--peer-python`, one
with `torch`, so are the weights in the beginning and all dropout masks: then a
seed is the official one, and ours follows its curve as far as rounding lets it.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import sys
from pathlib import Path
from unittest import mock

from pipelines.analysis.ablation_runs import AblationProcesses, AblationResult
from pipelines.analysis.ablation_study import load_study
from pipelines.workdir import data_identity
from txl_tf.data.manifest import Manifest
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.errors import JobError
from txl_tf.training.ledger_lines import LedgerLine

MODULE = "tests.measurements.measure_official_curve"
TRAIN_BYTES = 3_900_000
VALID_BYTES = 250_000
STEPS_PER_POINT = 100


def rows_of_text(train, num_rows, bytes_per_row):
    """The text in which our rows read what the official rows read of all of it.

    There, row `r` begins at `r` sixteenths of the text; here, rows begin where
    the one before ends. The last target of a row is another byte than there.
    """
    share = len(train) // num_rows
    rows = [train[row * share : row * share + bytes_per_row] for row in range(num_rows)]
    return b"".join(rows) + train[-1:]


def prepare(source, folder, study):
    from txl_tf.data.preparation import prepare_dataset
    from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer

    if folder.exists():
        return
    text = source.read_bytes()
    training = study.base.training
    bytes_per_row = training.num_steps * study.base.model.segment_length
    train = rows_of_text(text[:TRAIN_BYTES], training.global_batch_size, bytes_per_row)
    splits = {"train": [train], "valid": [text[-VALID_BYTES:]]}
    prepare_dataset(splits, ByteTokenizer(), str(folder), "enwik8-prefix")


@contextlib.contextmanager
def official_optimizer():
    """While it is open, Adam and its warm-up are PyTorch's and those of the official run."""
    from keras import ops
    from keras.optimizers import Adam

    from txl_tf.training.schedules import WarmupCosineDecay

    schedule, update = WarmupCosineDecay.__call__, Adam.update_step

    def one_step_earlier(own, step):
        return schedule(own, step + 1)

    def epsilon_after_correction(own, gradient, variable, learning_rate):
        step = ops.cast(own.iterations + 1, variable.dtype)
        epsilon = own.epsilon * ops.sqrt(1.0 - ops.power(own.beta_2, step))
        with mock.patch.object(own, "epsilon", epsilon):
            update(own, gradient, variable, learning_rate)

    with (
        mock.patch.object(WarmupCosineDecay, "__call__", one_step_earlier),
        mock.patch.object(Adam, "update_step", epsilon_after_correction),
    ):
        yield


@contextlib.contextmanager
def official_setting(run, folder, has_own_optimizer, peer_python):
    """While it is open, what is trained has the official optimizer, and draws if wanted."""
    from tests.pipelines.analysis.official_draws import OfficialDraws

    with contextlib.ExitStack() as exits:
        if not has_own_optimizer:
            exits.enter_context(official_optimizer())
        if peer_python is not None:
            draws = OfficialDraws(peer_python, run.experiment, folder / run.name)
            exits.enter_context(draws.used())
        yield


def train_run(run, data_folder, folder, has_own_optimizer, peer_python):
    """Trains and evaluates one seed in this process."""
    with PreemptionWatcher() as watcher:
        from pipelines.analysis.ablation_worker import AblationWorker

        with official_setting(run, folder, has_own_optimizer, peer_python):
            try:
                AblationWorker(run, data_folder, folder, watcher).run()
            except JobError as error:
                print(error, file=sys.stderr)
                sys.exit(error.exit_code)


def training_curve(ledger):
    """Mean loss of every hundred steps."""
    losses = [LedgerLine.parse(line).loss for line in ledger.read_text().splitlines()[1:]]
    return [
        statistics.fmean(losses[start : start + STEPS_PER_POINT])
        for start in range(0, len(losses), STEPS_PER_POINT)
    ]


def official_name(length):
    """What the official figures call an attention length."""
    return f"T{length.segment_length}_M{length.memory_length}" + "_same" * length.same_length


def curves(study, folder, data):
    """Our figures in the form of the official ones, of every seed that is finished."""
    seeds = []
    for run in study.runs():
        result = AblationResult.read(folder, run, data)
        if result.missing(run):
            continue
        figures = {
            official_name(length): loss.nats_per_token for length, loss in result.figures.items()
        }
        ledger = folder / run.name / "run" / "ledger.txt"
        seeds.append({"train_nll_per_100_steps": training_curve(ledger), "valid_nll": figures})
    return seeds


def compared(official, ours):
    """Both means, their difference, and whether ours is among the official seeds."""
    mean_official, mean_ours = statistics.fmean(official), statistics.fmean(ours)
    return {
        "official_mean": mean_official,
        "official_deviation": statistics.stdev(official),
        "our_mean": mean_ours,
        "our_deviation": statistics.stdev(ours) if len(ours) > 1 else None,
        "difference": mean_ours - mean_official,
        "is_within": min(official) <= mean_ours <= max(official),
        "is_within_two_deviations": abs(mean_ours - mean_official)
        <= 2.0 * statistics.stdev(official),
    }


def comparison(official_seeds, our_seeds):
    figures = {}
    for name in official_seeds[0]["valid_nll"]:
        figures[f"valid {name}"] = compared(
            [seed["valid_nll"][name] for seed in official_seeds],
            [seed["valid_nll"][name] for seed in our_seeds],
        )
    num_points = min(len(seed["train_nll_per_100_steps"]) for seed in [*official_seeds, *our_seeds])
    for index in range(num_points):
        first = index * STEPS_PER_POINT + 1
        figures[f"train {first}-{first + STEPS_PER_POINT - 1}"] = compared(
            [seed["train_nll_per_100_steps"][index] for seed in official_seeds],
            [seed["train_nll_per_100_steps"][index] for seed in our_seeds],
        )
    return figures


def print_comparison(figures):
    print(f"{'nats per byte':20}  official           ours               difference  within")
    for name, figure in figures.items():
        spread = figure["our_deviation"]
        print(
            f"{name:20}  {figure['official_mean']:.4f} +- {figure['official_deviation']:.4f}  "
            f"{figure['our_mean']:.4f} +- {0.0 if spread is None else spread:.4f}  "
            f"{figure['difference']:+.4f}     "
            f"{'seeds' if figure['is_within'] else ''} "
            f"{'2 deviations' if figure['is_within_two_deviations'] else 'NO'}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--own-optimizer", action="store_true")
    parser.add_argument("--peer-python", metavar="PATH")
    parser.add_argument("--seeds", type=int, nargs="+", help="Defaults to those of the study.")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--run", dest="run_name")
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    study = load_study("official_curve", arguments.overrides)
    if arguments.seeds is not None:
        if len(set(arguments.seeds)) != len(arguments.seeds):
            parser.error(f"--seeds must be different integers. Received: {arguments.seeds}")
        study = dataclasses.replace(study, seeds=tuple(arguments.seeds))
    data_folder = arguments.out / "data"
    optimizer = "own" if arguments.own_optimizer else "official"
    draws = "own" if arguments.peer_python is None else "official"
    folder = arguments.out / f"{optimizer}_optimizer_{draws}_draws"
    runs = {run.name: run for run in study.runs()}
    if arguments.run_name is not None:
        run = runs[arguments.run_name]
        train_run(run, str(data_folder), folder, arguments.own_optimizer, arguments.peer_python)
        return
    prepare(arguments.shared / "data" / "enwik8-prefix" / "enwik8.first4150000", data_folder, study)
    data = data_identity(Manifest.read(str(data_folder)))
    missing = [
        name for name, run in runs.items() if AblationResult.read(folder, run, data).missing(run)
    ]
    command = [sys.executable, "-m", MODULE, *sys.argv[1:], "--run"]
    with PreemptionWatcher() as watcher:
        processes = AblationProcesses(
            lambda name: [*command, name], folder, arguments.jobs, watcher
        )
        for name, error in processes.run(missing):
            print(f"{name}: {error or 'finished'}", file=sys.stderr, flush=True)
    golden = arguments.shared / "golden" / "training_curve_official_pytorch.json"
    ours = curves(study, folder, data)
    if not ours:
        sys.exit("No seed is finished.")
    figures = comparison(json.loads(golden.read_text())["seeds"], ours)
    (folder / "comparison.json").write_text(json.dumps(figures, indent=1) + "\n")
    print_comparison(figures)


if __name__ == "__main__":
    main()
