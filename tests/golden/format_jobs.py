"""The jobs whose files are kept in `formats/`, and what they are made of.

All paths are relative to the folder that the jobs run in, so that none is in a file.
"""

import json
import random
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "formats"
EXPECTED = FOLDER / "expected.json"
SPLITS = ("train", "valid", "test")
NUM_STEPS = 40
STOP_AFTER_STEP = 16

DATASETS = {
    "bytes": ["--tokenizer", "bytes"],
    "characters": ["--tokenizer", "characters", "--document-separator", ""],
    "words": ["--tokenizer", "words", "--min-frequency", "2"],
    "wordpiece": ["--tokenizer", "wordpiece", "--vocabulary-size", "110"],
    "sentencepiece": ["--tokenizer", "sentencepiece", "--vocabulary-size", "320"],
}

_TRANSFORMER = {
    "num_layers": 2,
    "hidden_dim": 8,
    "num_heads": 2,
    "head_dim": 4,
    "intermediate_dim": 12,
    "segment_length": 6,
    "memory_length": 7,
    # Large enough that every weight counts in the figures.
    "initializer_stddev": 0.3,
    "projection_stddev": 0.3,
}
_RECURRENT = {
    "num_layers": 2,
    "hidden_dim": 8,
    "embedding_dim": 6,
    "segment_length": 6,
    "initializer_stddev": 0.3,
}
_TRAINING = {
    "global_batch_size": 4,
    "num_steps": NUM_STEPS,
    "steps_per_loop": 2,
    "checkpoint_every_steps": 8,
    "evaluate_every_steps": 8,
    "num_kept_checkpoints": 1,
    "jit_compile": False,
}
RUNS = {
    "transformer_xl": (
        "words",
        {
            "model": _TRANSFORMER | {"embedding_dim": 8, "cutoffs": [12, 30], "division_factor": 2},
            "optimizer": {"learning_rate": 1e-2, "warmup_steps": 4},
        },
    ),
    "lstm": (
        "bytes",
        {
            "model": {"kind": "lstm"} | _RECURRENT,
            "optimizer": {"learning_rate": 1e-2, "schedule": "plateau", "warmup_steps": 4},
        },
    ),
    "qrnn": (
        "wordpiece",
        {
            "model": {"kind": "qrnn"} | _RECURRENT,
            "optimizer": {
                "name": "sgd",
                "learning_rate": 1e-1,
                "momentum": 0.9,
                "schedule": "inverse_square_root",
                "warmup_steps": 4,
            },
        },
    ),
    "averages": (
        "characters",
        {
            "model": _TRANSFORMER | {"share_attention_biases": True, "pre_norm": True},
            "training": {
                "average_weights_from_step": 6,
                "average_weights_decay": 0.9,
                "spike_deviations": 50.0,
                "document_boundaries": "mask",
                "intermediate_losses": True,
                "num_targets": 2,
            },
            "optimizer": {
                "name": "adafactor",
                "learning_rate": 1e-2,
                "weight_decay": 0.1,
                "warmup_steps": 4,
            },
        },
    ),
}
FIRST_STEPS = {
    "adamw": ("sentencepiece", {"weight_decay": 0.1}),
    "lamb": ("words", {"weight_decay": 0.1, "max_weight_norm": 10.0}),
    "muon": ("bytes", {"weight_decay": 0.1}),
}
"""Optimizers of which no run is kept, but two lines of the ledger and the names of all arrays."""

SESSIONS = {"transformer_xl": "the old miller", "averages": "The café"}
GENERATIONS = {
    "greedy": ["--sampler", "greedy"],
    "random": ["--sampler", "random", "--seed", "1"],
    "top_k": ["--sampler", "top_k", "--k", "5", "--seed", "2", "--num-samples", "2"],
    "top_p": ["--sampler", "top_p", "--p", "0.8", "--temperature", "1.2", "--seed", "3"],
    "min_p": ["--sampler", "min_p", "--min-p", "0.1", "--repetition-penalty", "1.3", "--seed", "4"],
    "beams": ["--beams", "3"],
}
GENERATED_RUNS = {"transformer_xl": "the old miller", "lstm": "the old", "averages": "The old"}
NEXT_PROMPT = " remembers"
TO_HUGGING_FACE = ["convert", "--to", "hugging_face", "--workdir", "run_transformer_xl"]
TO_HUGGING_FACE += ["--out", "hugging_face"]
FROM_HUGGING_FACE = ["convert", "--from", "hugging_face", "--source", "hugging_face"]
FROM_HUGGING_FACE += ["--out", "converted"]
EXPORT = ["export", "--workdir", "run_averages", "--out", "export"]
EXPORT += ["--max-text-bytes", "4096", "--max-tokens", "4096", "--max-new-tokens", "32"]
_PATH_OPTIONS = {"--config", "--data", "--out", "--session", "--source", "--study", "--workdir"}
_PATH_OPTIONS |= {"verify", *(f"--{split}-file" for split in SPLITS)}
STUDY = {
    "experiment": {
        "model": _TRANSFORMER,
        "training": _TRAINING | {"num_steps": 4, "evaluate_every_steps": None},
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 1},
        "evaluation": {"batch_size": 2},
    },
    "seeds": [1],
    "rows": [
        {"name": "whole"},
        {"name": "without_memory", "recurrence": False},
    ],
    "evaluation": {"split": "valid", "num_tokens": 120, "window_lengths": [6], "window_stride": 6},
}


def write_texts(folder: Path) -> None:
    """Writes the text of each split: made-up sentences, two or three in a document."""
    draw = random.Random(7)
    subjects = ["the old miller", "a grey cat", "the café", "every sailor", "the moon", "Zoë"]
    verbs = ["counts", "remembers", "paints", "forgets", "follows", "sells"]
    objects = ["the river", "seven boats", "a naïve song", "the long road", "warm bread", "«tea»"]
    ends = [".", ", and so on.", "!", " at 5:30.", " (again)."]
    folder.mkdir()
    for split, num_documents in zip(SPLITS, (40, 12, 10), strict=True):
        documents = []
        for _ in range(num_documents):
            lines = [
                f"{draw.choice(subjects)} {draw.choice(verbs)} {draw.choice(objects)}"
                f"{draw.choice(ends)}\n"
                for _ in range(draw.randint(1, 3))
            ]
            documents.append("".join(lines))
        (folder / f"{split}.txt").write_text("\n".join(documents), encoding="utf-8")


def prepare_command(kind: str, out: str) -> list[str]:
    """The job that makes a data set."""
    files = [argument for split in SPLITS for argument in (f"--{split}-file", f"texts/{split}.txt")]
    return ["prepare", *files, *DATASETS[kind], "--workers", "1", "--out", out]


def experiment_of(name: str, folder: Path) -> dict:
    """The configuration of a run, for the vocabulary of its data set."""
    kind, sections = RUNS[name]
    return {
        "model": {"vocabulary_size": _vocabulary_size(kind, folder)} | sections["model"],
        "training": _TRAINING | sections.get("training", {}),
        "optimizer": sections["optimizer"],
        "evaluation": {"batch_size": 3},
    }


def first_steps_of(name: str, folder: Path) -> dict:
    """The configuration of a run of two steps with one of `FIRST_STEPS`."""
    kind, settings = FIRST_STEPS[name]
    return {
        "model": {"vocabulary_size": _vocabulary_size(kind, folder)} | _TRANSFORMER,
        "training": _TRAINING | {"num_steps": 2},
        "optimizer": {"name": name, "warmup_steps": 1} | settings,
        "evaluation": {"batch_size": 3},
    }


def study_of(folder: Path) -> dict:
    """The study, for the vocabulary of the data set of characters."""
    model = {"vocabulary_size": _vocabulary_size("characters", folder)} | _TRANSFORMER
    return STUDY | {"experiment": STUDY["experiment"] | {"model": model}}


def _vocabulary_size(kind: str, folder: Path) -> int:
    return json.loads((folder / f"data_{kind}" / "manifest.json").read_text())["vocabulary_size"]


def train_command(name: str, workdir: str) -> list[str]:
    """The job that trains a run, and that resumes it."""
    kind = (RUNS | FIRST_STEPS)[name][0]
    paths = ["--data", f"data_{kind}", "--workdir", workdir]
    return ["train", "--config", f"{name}.json", *paths]


def evaluate_command(name: str, workdir: str, split: str) -> list[str]:
    """The job that evaluates the newest checkpoint of a run."""
    data = f"data_{RUNS[name][0]}"
    return ["evaluate", "--workdir", workdir, "--data", data, "--split", split, "--json"]


def generate_command(name: str, options: list[str]) -> list[str]:
    """The job that writes a text with a run."""
    prompt = ["--prompt", GENERATED_RUNS[name], "--num-tokens", "12"]
    return ["generate", "--workdir", f"run_{name}", *prompt, *options]


def session_command(name: str, prompt: str) -> list[str]:
    """The job that begins a session file, or continues it."""
    options = ["--prompt", prompt, "--num-tokens", "9", "--seed", "5"]
    return ["generate", "--workdir", f"run_{name}", "--session", f"session_{name}.npz", *options]


def study_command(*options: str) -> list[str]:
    """The job of the study, or with `--only-table` of its table."""
    paths = ["--study", "study.json", "--data", "data_characters", "--out", "study"]
    return ["analyze", "ablation", *paths, *options]


def in_folder(arguments: list[str], folder: Path) -> list[str]:
    """The same job from another folder: paths are relative to `folder`."""
    before = [None, *arguments[:-1]]
    return [
        str(folder / argument) if option in _PATH_OPTIONS else argument
        for option, argument in zip(before, arguments, strict=True)
    ]


def json_text(values: dict, depth: int = 3) -> str:
    """JSON that a reader can follow: a line for each value at a depth."""
    if depth == 0 or not isinstance(values, dict):
        return json.dumps(values, ensure_ascii=False)
    lines = [f"{json.dumps(key)}: {json_text(value, depth - 1)}" for key, value in values.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def json_in(output: str) -> dict:
    """The figures in what a job printed."""
    return json.loads(output[output.index("{") : output.rindex("}") + 1])
