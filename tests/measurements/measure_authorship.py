"""Authorship of long passages: fine-tuned, from scratch, without memory, and by TF-IDF.

    python -m tests.measurements.measure_authorship --data FOLDER --pretrained RUN --results DIR

The folder has `train.jsonl`, `valid.jsonl` and `test.jsonl` with the fields `text` and
`label`; the passages of the three are of different books. Accuracy is that of the test
passages, of the checkpoint that is best on the validation passages.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from txl_tf.run_folder import describe_run

_SPLITS = ("train", "valid", "test")
# Strength of the regularisation of TF-IDF's regression; the validation passages choose.
_STRENGTHS = (1.0, 10.0, 100.0)


def measure_tfidf(data: Path) -> float:
    """Returns the test accuracy of the words and pairs of words with logistic regression."""
    texts, labels = {}, {}
    for split in _SPLITS:
        rows = [json.loads(line) for line in (data / f"{split}.jsonl").open()]
        texts[split] = [row["text"] for row in rows]
        labels[split] = [row["label"] for row in rows]
    best = (-1.0, 0.0)
    for strength in _STRENGTHS:
        model = make_pipeline(
            TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2),
            LogisticRegression(C=strength, max_iter=300),
        )
        model.fit(texts["train"], labels["train"])
        pair = (model.score(texts[s], labels[s]) for s in ("valid", "test"))
        best = max(best, tuple(pair))
    return best[1]


class FineTuning:
    """Runs of `txl finetune` on the passages, one for each way and seed.

    Args:
        data: path of the passages.
        pretrained: path of the run to begin from.
        results: path of a folder for the runs.
        settings: list of `--set` values that all runs have.
    """

    def __init__(self, data: Path, pretrained: Path, results: Path, settings: list[str]) -> None:
        self._data = data
        self._pretrained = pretrained
        self._results = results
        self._settings = settings
        experiment = {"model": describe_run(str(pretrained)).experiment.model.to_dict()}
        experiment["training"] = {"global_batch_size": 1, "num_steps": 1}
        results.mkdir(parents=True, exist_ok=True)
        (results / "model.json").write_text(json.dumps(experiment))

    def accuracy(self, way: str, seed: int) -> float:
        """Trains, unless it is done, and returns the accuracy of the test passages."""
        length = describe_run(str(self._pretrained)).experiment.model.segment_length
        start = {
            "pretrained": ["--init-from", self._pretrained],
            "scratch": [
                *("--config", self._results / "model.json", "--vocabulary", self._vocabulary())
            ],
            "first segment": [
                *("--init-from", self._pretrained),
                *("--set", f"task.max_tokens={length}", "--set", "model.memory_length=0"),
            ],
        }[way]
        workdir = self._results / f"{way.replace(' ', '-')}-{seed}"
        files = ["--train", self._data / "train.jsonl", "--valid", self._data / "valid.jsonl"]
        sets = [f"training.seed={seed}", *self._settings]
        words = [word for setting in sets for word in ("--set", setting)]
        predict = ["--predict", self._data / "test.jsonl"]
        command = ["finetune", *start, *files, "--workdir", workdir, *words, *predict]
        finished = subprocess.run(
            [sys.executable, "-m", "pipelines.command_line", *map(str, command)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        line = next(each for each in finished.stdout.splitlines() if "accuracy" in each)
        return float(line.partition("accuracy ")[2].split(",")[0])

    def _vocabulary(self) -> Path:
        return self._pretrained


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pretrained", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    ways = ["pretrained", "scratch", "first segment"]
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways)
    arguments = parser.parse_args()
    print(f"TF-IDF: {measure_tfidf(arguments.data):.4f}", flush=True)
    own = arguments.data, arguments.pretrained, arguments.results, arguments.settings
    runs = FineTuning(*own)
    for way in arguments.ways:
        begin = time.monotonic()
        found = [runs.accuracy(way, seed) for seed in range(arguments.seeds)]
        shown = ", ".join(f"{each:.4f}" for each in found)
        seconds = time.monotonic() - begin
        print(f"{way}: mean {statistics.fmean(found):.4f} ({shown}), {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
