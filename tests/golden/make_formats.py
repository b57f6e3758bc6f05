"""Makes the files in `formats/` anew: `python -m tests.golden.make_formats FOLDER`.

They are worth something only while they are older than the program that reads
them, so this is run for a new format, never to make a test pass. FOLDER must
not exist; what is made there is moved to `formats/` by hand. Files of
TensorBoard are left out: their names have that of the host.
"""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.golden import format_jobs as jobs
from tests.golden.format_names import experiments, fields, model_variables
from tests.golden.served_answers import served_answers
from tests.pipelines.txl_process import command, environment, run_txl


class Maker:
    """Runs the jobs in a folder.

    Args:
        folder: path of a folder to make.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder

    def run(self, *arguments: str) -> str:
        """Runs a job, and returns what it printed."""
        finished = run_txl(*arguments, cwd=str(self.folder))
        if finished.returncode:
            raise RuntimeError(f"{arguments}: {finished.returncode}\n{finished.stderr}")
        print(*arguments, flush=True)
        return finished.stdout

    def write(self, name: str, values: dict) -> None:
        """Writes a file of JSON."""
        (self.folder / name).write_text(json.dumps(values, indent=1) + "\n")

    def stopped_run(self, name: str) -> None:
        """Trains a run until it is told to stop in the middle, as a machine that is taken away."""
        workdir = f"run_{name}"
        ledger = self.folder / workdir / "ledger.txt"
        process = subprocess.Popen(
            command(*jobs.train_command(name, workdir)),
            cwd=self.folder,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None:
            lines = ledger.read_text().splitlines() if ledger.exists() else []
            if len(lines) > jobs.STOP_AFTER_STEP:
                process.send_signal(signal.SIGTERM)
                break
            time.sleep(0.001)
        if process.wait() != 75:
            raise RuntimeError(f"{workdir} ended with {process.returncode}, not in the middle")

    def evaluations(self, name: str, workdir: str) -> dict:
        """The figures of both splits."""
        found = {}
        for split in ("valid", "test"):
            figures = jobs.json_in(self.run(*jobs.evaluate_command(name, workdir, split)))
            figures["total_nats"] = figures["total_nats"].hex()
            found[split] = {key: value for key, value in figures.items() if key != "seconds"}
        return found


def arrays_of(workdir: Path) -> list:
    """Names, dtypes and shapes in the newest checkpoint of a run."""
    checkpoint = max((workdir / "checkpoints").glob("step-*"))
    arrays = json.loads((checkpoint / "manifest.json").read_text())["arrays"]
    return [[name, array["dtype"], array["shape"]] for name, array in sorted(arrays.items())]


def make_runs(maker: Maker, expected: dict) -> None:
    """Trains every run whole and once more to its middle, and notes what becomes of both."""
    for name in jobs.RUNS:
        maker.write(f"{name}.json", jobs.experiment_of(name, maker.folder))
        maker.run(*jobs.train_command(name, f"whole_{name}"))
        maker.stopped_run(name)
        workdir = f"run_{name}"
        # It ends when there is no newer checkpoint to wait for.
        watch = ["--watch", "--watch-seconds", "0.1"]
        run_txl(*jobs.evaluate_command(name, workdir, "valid"), *watch, cwd=str(maker.folder))
        expected["runs"][name] = {
            "ledger": (maker.folder / f"whole_{name}" / "ledger.txt").read_text().splitlines(),
            "stopped": maker.evaluations(name, workdir),
            "finished": maker.evaluations(name, f"whole_{name}"),
            "arrays": arrays_of(maker.folder / workdir),
        }
    for name in jobs.FIRST_STEPS:
        maker.write(f"{name}.json", jobs.first_steps_of(name, maker.folder))
        maker.run(*jobs.train_command(name, f"first_{name}"))
        expected["first_steps"][name] = {
            "ledger": (maker.folder / f"first_{name}" / "ledger.txt").read_text().splitlines(),
            "arrays": arrays_of(maker.folder / f"first_{name}"),
        }


def check_resume(maker: Maker, expected: dict) -> None:
    """Fails unless a stopped run can be finished and is then the whole one, bit for bit."""
    for name in jobs.RUNS:
        shutil.copytree(maker.folder / f"run_{name}", maker.folder / f"resumed_{name}")
        maker.run(*jobs.train_command(name, f"resumed_{name}"))
        resumed = (maker.folder / f"resumed_{name}" / "ledger.txt").read_text().splitlines()
        assert resumed == expected["runs"][name]["ledger"], name
        assert maker.evaluations(name, f"resumed_{name}") == expected["runs"][name]["finished"]


def make_texts(maker: Maker, expected: dict) -> None:
    """Writes texts, and sessions that are continued twice."""
    for name in jobs.GENERATED_RUNS:
        expected["generated"][name] = {
            kind: maker.run(*jobs.generate_command(name, options))
            for kind, options in jobs.GENERATIONS.items()
        }
    for name, prompt in jobs.SESSIONS.items():
        first = maker.run(*jobs.session_command(name, prompt))
        session = maker.folder / f"session_{name}.npz"
        kept = session.read_bytes()
        continued = maker.run(*jobs.session_command(name, jobs.NEXT_PROMPT))
        session.write_bytes(kept)
        expected["sessions"][name] = {"first": first, "continued": continued}


def make_converted(maker: Maker, expected: dict) -> None:
    """Converts a run to the other format and back."""
    maker.run(*jobs.TO_HUGGING_FACE)
    maker.run(*jobs.FROM_HUGGING_FACE)
    expected["converted"] = maker.evaluations("transformer_xl", "converted")


def make_study(maker: Maker, expected: dict) -> None:
    """Makes a study, of which only the figures are kept."""
    maker.write("study.json", jobs.study_of(maker.folder))
    maker.run(*jobs.study_command())
    expected["study"] = json.loads(maker.run(*jobs.study_command("--only-table", "--json")))
    for run in (maker.folder / "study").glob("*/*/"):
        shutil.rmtree(run / "run")
        (run / "log.txt").unlink()


def main(folder: Path) -> None:
    """Makes all files."""
    maker = Maker(folder)
    expected = {"runs": {}, "first_steps": {}, "generated": {}, "sessions": {}}
    jobs.write_texts(folder / "texts")
    for kind in jobs.DATASETS:
        maker.run(*jobs.prepare_command(kind, f"data_{kind}"))
    make_runs(maker, expected)
    check_resume(maker, expected)
    make_texts(maker, expected)
    make_converted(maker, expected)
    make_study(maker, expected)
    maker.run(*jobs.EXPORT)
    expected["served"] = served_answers(folder / "export" / "1")
    expected |= {"fields": fields(), "model_variables": model_variables()} | experiments()
    (folder / "expected.json").write_text(jobs.json_text(expected) + "\n", encoding="utf-8")
    for pattern in ("whole_*", "resumed_*", "first_*", "*/tensorboard"):
        for path in folder.glob(pattern):
            shutil.rmtree(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
