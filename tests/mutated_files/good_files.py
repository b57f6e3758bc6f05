"""One good file of every format that the program reads, as small as it can be."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.convert import python2_pickle
from tests.convert.goldens import FOLDER

KINDS = ("bytes", "characters", "words", "wordpiece", "sentencepiece")
_OPTIONS = {
    "bytes": (),
    "characters": (),
    "words": ("--add-eos",),
    "wordpiece": ("--vocabulary-size", "100"),
    "sentencepiece": ("--vocabulary-size", "280"),
}
_MODEL = {
    "num_layers": 1,
    "hidden_dim": 8,
    "num_heads": 2,
    "head_dim": 4,
    "intermediate_dim": 8,
    "segment_length": 8,
    "memory_length": 8,
}
_TRAINING = {
    "global_batch_size": 2,
    "num_steps": 4,
    "steps_per_loop": 2,
    "checkpoint_every_steps": 2,
    "jit_compile": False,
}

RunJob = Callable[[Sequence[str]], object]


def make_good_files(folder: Path, run: RunJob) -> None:
    """Makes them all.

    Args:
        folder: path of the folder to fill.
        run: function that runs a job with the given arguments, and raises an
            error if it fails.
    """
    (folder / "texts").mkdir(parents=True)
    text = "".join(f"{number} and {number * 7 % 101} make a sum\n" for number in range(150))
    for name in ("train", "valid"):
        (folder / "texts" / f"{name}.txt").write_text(text)
    lines = [json.dumps({"text": f"text {number}", "id": number}) + "\n" for number in range(30)]
    (folder / "corpus.jsonl").write_text("".join(lines))
    for kind in KINDS:
        splits = [f"--{name}-file {folder}/texts/{name}.txt" for name in ("train", "valid")]
        command = f"prepare {' '.join(splits)} --tokenizer {kind} --workers 1"
        run([*command.split(), *_OPTIONS[kind], "--out", f"{folder}/data-{kind}"])
        config = _experiment(folder / f"data-{kind}")
        (folder / f"{kind}.json").write_text(json.dumps(config))
    for kind in ("bytes", "characters"):
        paths = f"--config {folder}/{kind}.json --data {folder}/data-{kind}"
        run(f"train {paths} --workdir {folder}/run-{kind}".split())
    _write_toml(folder / "experiment.toml", _experiment(folder / "data-bytes"))
    run(
        f"evaluate --workdir {folder}/run-characters --data {folder}/data-characters "
        "--split valid --watch".split()
    )
    run(f"export --workdir {folder}/run-characters --out {folder}/export".split())
    run(
        f"generate --workdir {folder}/run-characters --prompt a --max-tokens 2 "
        f"--session {folder}/session.npz".split()
    )
    shutil.copytree(FOLDER / "tf1_enwik8_like", folder / "tf1")
    run(
        f"convert --from official_tensorflow --source {folder}/tf1/model.ckpt-0 "
        f"--out {folder}/converted --set model.memory_length=4".split()
    )
    run(f"convert --to hugging_face --workdir {folder}/converted --out {folder}/hf".split())
    shutil.copy(FOLDER / "hf_char.npz", folder / "hf.npz")
    symbols = [python2_pickle.text(symbol) for symbol in ("<eos>", "the", "a", "b")]
    vocabulary = python2_pickle.instance(
        "vocabulary", "Vocab", {"idx2sym": python2_pickle.sequence(symbols)}
    )
    (folder / "cache.pkl").write_bytes(b"\x80\x02" + vocabulary + b".")
    study = {
        "experiment": _experiment(folder / "data-bytes"),
        "seeds": [1],
        "rows": [{"name": "one"}],
        "evaluation": {"split": "valid"},
    }
    (folder / "study.json").write_text(json.dumps(study))


def _experiment(data: Path) -> dict:
    manifest = json.loads((data / "manifest.json").read_text())
    return {
        "model": _MODEL | {"vocabulary_size": manifest["vocabulary_size"]},
        "training": _TRAINING,
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 1},
        "evaluation": {"batch_size": 2},
    }


def _write_toml(path: Path, sections: dict) -> None:
    lines = []
    for name, values in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    path.write_text("\n".join(lines) + "\n")
