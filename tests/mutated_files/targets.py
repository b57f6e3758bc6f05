"""Which files are mutated, what puts their checksums right, and which jobs read them."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.mutated_files import seals
from tests.mutated_files.good_files import KINDS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A file of the good ones.

    Args:
        path: str. Relative to the folder of all good files.
        jobs: the arguments of every job that reads it; `{}` is the folder.
        seal_values: function that puts right the checksum within a JSON value.
        seal: function of the path that puts right those in other files.
        is_json: bool. Whether fields can be mutated.
        codes: the exit codes that are right, beside 0.
    """

    path: str
    jobs: Sequence[str]
    seal_values: Callable[[Any], Any] = lambda values: values
    seal: Callable[[Path], None] = lambda path: None
    is_json: bool = False
    codes: Sequence[int] = (65, 66, 78)


_EXPORT_JOBS = ("verify {}/export", "serve --export {}/export --port 0 --grpc-port 0")
_NEW = "--workdir {}/new"
_TRAIN_BYTES = "train --config {}/bytes.json --data {}/data-bytes " + _NEW
_RUN = "--workdir {}/run-characters"
_DATA = "--data {}/data-characters"
_VERIFY_RUN = "verify {}/run-characters"
_RESUME = f"train {_RUN} {_DATA} --config {{}}/characters.json"
_EVALUATE = f"evaluate {_RUN} {_DATA} --split valid --json"
_GENERATE = f"generate {_RUN} --prompt a --max-tokens 2"
_EXPORT = f"export {_RUN} --out {{}}/new-export"
_TO_HUGGING_FACE = f"convert --to hugging_face {_RUN} --out {{}}/new-hf"
_RUN_JOBS = (_VERIFY_RUN, _RESUME, _EVALUATE, _GENERATE, _EXPORT, _TO_HUGGING_FACE)
_CHECKPOINT = "run-characters/checkpoints/step-00000004"
_CONVERTED_JOBS = (
    "verify {}/converted",
    "convert --to hugging_face --workdir {}/converted --out {}/new-hf",
    "export --workdir {}/converted --out {}/new-export",
)
_FROM_HUGGING_FACE = "convert --from hugging_face --out {}/new-converted --source {}/"
_FROM_TENSORFLOW = (
    "convert --from official_tensorflow --source {}/tf1/model.ckpt-0 --out {}/new-converted "
    "--set model.memory_length=4"
)


def all_targets() -> list[Target]:
    """Every file, the smaller formats last."""
    return [*_data_targets(), *_run_targets(), *_export_targets(), *_other_targets()]


def _data_targets() -> list[Target]:
    evaluate = "evaluate --workdir {}/run-bytes --data {}/data-bytes --split valid --json"
    jobs = ("verify {}/data-bytes", _TRAIN_BYTES, evaluate)
    found = [
        Target(
            path="data-bytes/manifest.json",
            jobs=(*jobs, "export --workdir {}/run-bytes --data {}/data-bytes --out {}/new-export"),
            seal_values=seals.seal_data_manifest,
            is_json=True,
            # A split that a job is asked for may not be there any more.
            codes=(2, 65, 66, 78),
        ),
        Target(path="data-bytes/train-00000-of-00001.tfrecord", jobs=jobs, seal=seals.seal_shard),
    ]
    names = {"sentencepiece": ("vocabulary.model",), "bytes": ()}
    for kind in KINDS:
        for name in names.get(kind, ("vocabulary.json", "vocabulary.txt")):
            found.append(
                Target(
                    path=f"data-{kind}/{name}",
                    jobs=(
                        f"verify {{}}/data-{kind}",
                        f"train --config {{}}/{kind}.json --data {{}}/data-{kind} {_NEW}",
                    ),
                    seal=seals.seal_vocabulary,
                    is_json=name.endswith(".json"),
                )
            )
    return found


def _run_targets() -> list[Target]:
    watch = f"evaluate {_RUN} {_DATA} --split valid --watch --watch-seconds 1"
    reading = (_VERIFY_RUN, _RESUME)
    return [
        # Without it, the folder is not one of a run.
        Target(
            path="run-characters/run.json", jobs=_RUN_JOBS, is_json=True, codes=(65, 66, 73, 78)
        ),
        *(
            Target(
                path=f"run-characters/vocabulary/{name}",
                jobs=(_VERIFY_RUN, _GENERATE, _EXPORT),
                is_json=name.endswith(".json"),
            )
            for name in ("vocabulary.json", "vocabulary.txt")
        ),
        Target(
            path=f"{_CHECKPOINT}/manifest.json",
            jobs=_RUN_JOBS,
            seal_values=seals.seal_checkpoint_manifest,
            is_json=True,
        ),
        *(
            Target(path=f"{_CHECKPOINT}/{name}", jobs=_RUN_JOBS, seal=seals.seal_checkpoint)
            for name in ("state.index", "state.data-00000-of-00001")
        ),
        Target(path="run-characters/ledger.txt", jobs=reading),
        Target(
            path="run-characters/checkpoints/best.json",
            jobs=reading,
            seal_values=seals.seal_note,
            is_json=True,
        ),
        Target(
            path="run-characters/evaluations/valid/results.jsonl",
            jobs=(_VERIFY_RUN, watch, _EXPORT),
            is_json=True,
        ),
        Target(
            path="session.npz",
            jobs=(
                "verify {}/session.npz",
                f"generate {_RUN} --max-tokens 2 --session {{}}/session.npz",
            ),
            # Without it, there is nothing to go on from.
            codes=(2, 65, 66, 78),
        ),
    ]


def _export_targets() -> list[Target]:
    names = (
        "assets.extra/model_card.json",
        "saved_model.pb",
        "variables/variables.index",
        "variables/variables.data-00000-of-00001",
    )
    return [
        Target(path="export/1/SHA256SUMS", jobs=_EXPORT_JOBS),
        *(
            Target(
                path=f"export/1/{name}",
                jobs=_EXPORT_JOBS,
                seal=seals.seal_export,
                is_json=name.endswith(".json"),
            )
            for name in names
        ),
    ]


def _other_targets() -> list[Target]:
    step = "converted/checkpoints/step-00000000"
    user_codes = (2, 65, 66, 78)
    return [
        Target(path="converted/config.json", jobs=_CONVERTED_JOBS, is_json=True),
        Target(
            path=f"{step}/manifest.json",
            jobs=_CONVERTED_JOBS,
            seal_values=seals.seal_checkpoint_manifest,
            is_json=True,
        ),
        Target(path=f"{step}/state.index", jobs=_CONVERTED_JOBS, seal=seals.seal_checkpoint),
        # What it does not tell is asked for.
        Target(
            path="hf/config.json",
            jobs=(_FROM_HUGGING_FACE + "hf",),
            is_json=True,
            codes=user_codes,
        ),
        Target(path="hf/model.safetensors", jobs=(_FROM_HUGGING_FACE + "hf",)),
        Target(path="hf.npz", jobs=(_FROM_HUGGING_FACE + "hf.npz",)),
        *(
            Target(path=f"tf1/model.ckpt-0.{name}", jobs=(_FROM_TENSORFLOW,), seal=seal)
            for name, seal in (
                ("index", seals.seal_index),
                ("data-00000-of-00001", lambda path: None),
            )
        ),
        Target(path="cache.pkl", jobs=("convert --vocabulary {}/cache.pkl --out {}/new.txt",)),
        Target(
            path="bytes.json",
            jobs=(_TRAIN_BYTES, "doctor --config {}/bytes.json"),
            is_json=True,
            codes=user_codes,
        ),
        Target(
            path="experiment.toml",
            jobs=(
                "train --config {}/experiment.toml --data {}/data-bytes " + _NEW,
                "doctor --config {}/experiment.toml",
            ),
            codes=user_codes,
        ),
        Target(
            path="study.json",
            jobs=(
                "analyze ablation --study {}/study.json --data {}/data-bytes --out {}/new-study "
                "--only-table",
            ),
            is_json=True,
            codes=user_codes,
        ),
        Target(
            path="corpus.jsonl",
            jobs=(
                "prepare --text {}/corpus.jsonl --format jsonl --tokenizer bytes --workers 1 "
                "--out {}/new-data",
            ),
        ),
    ]
