"""Measures speed and memory of the jobs: `txl benchmark`.

    txl benchmark train evaluate
    txl benchmark evaluate --memory-lengths 800,1600,3200
    txl benchmark train --against hugging_face --peer-python PATH --json

Each case runs in a fresh process, and in rounds that take turns with the peer
and with large matrix products, which tell how fast the machine is. Settings
that are not part of a shape are the defaults of the jobs.
"""

import argparse
import json
import os
import platform
import shutil
from importlib import metadata
from typing import Any

from txl_tf import __version__
from txl_tf.config.base import MAX_ROWS, MAX_TOKENS
from txl_tf.errors import InputMissingError, UsageError
from txl_tf.machine_memory import describe_bytes

from .arguments import (
    MAX_COUNT,
    MAX_SECONDS,
    add_config_argument,
    add_json_argument,
    add_number,
    add_numbers,
    add_override_argument,
)
from .benchmarking.cases import SUITES, Case, cases_of
from .benchmarking.measurement import ChosenPeer, Measurement, Row, add_growth
from .benchmarking.peers import PEERS
from .benchmarking.rounds import short
from .command_line import run_job
from .prepare_tokenizer import TRAINED_WITHOUT_EXTRA
from .progress import plain_table

_LEAST_SECONDS = 1e-3
# Suites that read an option; `--config` and `--set` are of those with a model.
_MODELS = ("train", "evaluate", "generate", "compile")
_READ_BY = {
    "config": _MODELS,
    "overrides": _MODELS,
    "segment_lengths": ("train", "evaluate", "read"),
    "memory_lengths": ("train", "evaluate", "generate"),
    "rows": ("train", "evaluate", "generate", "read"),
    "text": ("prepare",),
    "tokenizer": ("prepare",),
    "data": ("read",),
}
_OPTIONS = {"overrides": "--set"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    parser.add_argument(
        "suites", metavar="SUITE", nargs="+", choices=SUITES, help=f"{', '.join(SUITES)}"
    )
    shapes = parser.add_argument_group("shapes")
    add_config_argument(shapes, help="experiment or .json or .toml file (default: own shapes)")
    add_override_argument(shapes)
    for option, most, meaning in (
        ("--segment-lengths", MAX_TOKENS, "tokens read at a time; in training M is T too"),
        ("--memory-lengths", MAX_TOKENS, "tokens remembered (default: 128 or 1600,3800)"),
        ("--rows", MAX_ROWS, "rows (default: 8 to train, 1 to evaluate, 1,8 to generate)"),
    ):
        add_numbers(shapes, option, 1, most, meaning, unit="N")
    text = parser.add_argument_group("text")
    text.add_argument("--text", metavar="FILE", help="of `prepare` (default: generated words)")
    text.add_argument(
        "--tokenizer",
        action="append",
        metavar="KIND",
        choices=TRAINED_WITHOUT_EXTRA,
        help="of `prepare`; may be repeated (default: bytes and words)",
    )
    text.add_argument("--data", metavar="DIR", help="data set of `read` (default: random bytes)")
    rounds = parser.add_argument_group(
        "rounds", "Each case has a process of its own, whose peak memory is reported."
    )
    add_number(rounds, "--rounds", 1, MAX_COUNT, "rounds; medians are reported", default=5)
    add_number(
        rounds,
        "--turn-seconds",
        _LEAST_SECONDS,
        MAX_SECONDS,
        "length of a turn, about",
        default=2.0,
        metavar="SECONDS",
    )
    peers = parser.add_argument_group("peer")
    peers.add_argument(
        "--against", metavar="PEER", choices=PEERS, help=f"take turns with {' or '.join(PEERS)}"
    )
    peers.add_argument("--peer-python", metavar="PATH", help="Python that has the peer")
    add_json_argument(parser)


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks what can be checked before TensorFlow is imported."""
    arguments.suites = list(dict.fromkeys(arguments.suites))
    for name, suites in _READ_BY.items():
        if getattr(arguments, name) and not set(suites) & set(arguments.suites):
            option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
            raise UsageError(
                f"No suite that was chosen reads {option}.",
                where=option,
                remedy=f"Leave it out, or choose {' or '.join(suites)}.",
            )
    for option, path, exists in (
        ("--text", arguments.text, os.path.isfile),
        ("--data", arguments.data, os.path.isdir),
    ):
        # Only TensorFlow can look into a store.
        if path is not None and "://" not in path and not exists(path):
            raise InputMissingError("There is nothing to read.", where=f"{option} {path}")
    arguments.chosen = _chosen_peer(arguments)
    arguments.cases = [case for suite in arguments.suites for case in cases_of(suite, arguments)]
    if arguments.chosen is not None:
        _check_peer(arguments.chosen, arguments.cases)


def _chosen_peer(arguments: argparse.Namespace) -> ChosenPeer | None:
    name, python = arguments.against, arguments.peer_python
    if name is None and python is None:
        return None
    if name is None or python is None:
        missing, given = ("--against", "--peer-python")[:: 1 if name is None else -1]
        raise UsageError(f"This goes with {missing}.", where=given, remedy="Give both of them.")
    if shutil.which(python) is None:
        raise InputMissingError("There is no such program.", where=f"--peer-python {python}")
    return ChosenPeer(PEERS[name], python)


def _check_peer(chosen: ChosenPeer, cases: list[Case]) -> None:
    peer = chosen.peer
    for case in cases:
        if case.suite not in peer.works:
            raise UsageError(
                f"{peer.name} has nothing to compare {case.suite} with.",
                where=f"--against {peer.name}",
                remedy=f"It has: {', '.join(peer.works)}.",
            )
        if case.peer_request is None:
            raise UsageError(
                f"{peer.name} does other work with these settings: {case.suite} {case.shape}.",
                where=f"--against {peer.name}",
                remedy="Take a plain Transformer-XL with a full softmax, trained with Adam.",
            )


def run(arguments: argparse.Namespace) -> None:
    """Measures all cases and prints their figures."""
    options = arguments.rounds, arguments.turn_seconds, arguments.chosen
    with Measurement(*options) as measurement:
        rows = [measurement.measure(case) for case in arguments.cases]
    add_growth(rows)
    report = {
        "machine": _machine(),
        "rounds": arguments.rounds,
        "turn_seconds": arguments.turn_seconds,
        "rows": rows,
    }
    print(json.dumps(report) if arguments.json else describe(report))


def _machine() -> dict[str, Any]:
    return {
        "cpus": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "tensorflow": metadata.version("tensorflow"),
        "txl_tf": __version__,
    }


_HEAD = ("suite", "shape", "tokens/s", "from - to", "ms/token", "time", "FLOPs")
_SHARES = ("of float32", "of bfloat16", "memory")
_PEER_HEAD = ("peer", "tokens/s", "ratio", "from - to", "memory")
_NOTES = (
    "time, FLOPs: of a token, relative to the first row of the suite; of float32, of bfloat16: "
    "share of the machine's rate of large products, positions not counted; memory: the most that "
    "the process had, and not those that it started"
)


def describe(report: dict[str, Any]) -> str:
    """Returns the figures as tables: speeds, and seconds of starts.

    Args:
        report: dict that `run` prints as JSON.
    """
    machine, rows = report["machine"], report["rows"]
    parts = [
        f"{machine['cpus']} CPUs, {machine['processor']}, TensorFlow {machine['tensorflow']}; "
        f"median of {report['rounds']} rounds"
    ]
    speeds = [row for row in rows if "tokens_per_second" in row]
    if speeds:
        has_peer = "peer" in speeds[0]
        head = [*_HEAD, *_SHARES, *(_PEER_HEAD if has_peer else ())]
        cells = [[*_speed_cells(row), *(_peer_cells(row) if has_peer else ())] for row in speeds]
        words = ("suite", "shape", "peer")
        right = [column for column, name in enumerate(head) if name not in words]
        parts += [*_rates(speeds), plain_table([head, *cells], right=right), _NOTES]
    starts = [row for row in rows if "seconds" in row]
    if starts:
        start_head = ("from the start of a process to", "seconds", "from - to", "memory")
        parts.append(plain_table([start_head, *map(_start_cells, starts)], right=(1, 2, 3)))
    return "\n".join(parts)


def _rates(rows: list[Row]) -> list[str]:
    rates = next((row["product_rate"] for row in rows if "product_rate" in row), None)
    if rates is None:
        return []
    named = ", ".join(f"{name} {each['median'] / 1e9:,.0f}" for name, each in rates.items())
    return [f"large products, in 10^9 operations per second: {named}"]


def _speed_cells(row: Row) -> list[str]:
    speed = row["tokens_per_second"]
    cells = [
        row["suite"],
        row["shape"],
        short(speed["median"]),
        _span(speed),
        f"{1000 / speed['median']:.3g}",
    ]
    if "flops_per_token" in row:
        cells += [
            f"{row['relative_time_per_token']:.2f}",
            f"{row['relative_flops_per_token']:.2f}",
            *(f"{each['median']:.1%}" for each in row["share_of_product_rate"].values()),
        ]
    else:
        cells += [""] * 4
    return [*cells, describe_bytes(row["peak_bytes"])]


def _peer_cells(row: Row) -> list[str]:
    peer = row["peer"]
    ratio = peer["times_faster"]
    return [
        f"{peer['name']}, {peer['variant']}",
        short(peer["tokens_per_second"]["median"]),
        f"{ratio['median']:.2f}",
        f"{ratio['least']:.2f} - {ratio['most']:.2f}",
        describe_bytes(peer["peak_bytes"]),
    ]


def _start_cells(row: Row) -> list[str]:
    seconds = row["seconds"]
    memory = describe_bytes(row["peak_bytes"]) if "peak_bytes" in row else ""
    span = f"{seconds['least']:.2f} - {seconds['most']:.2f}"
    return [row["shape"], f"{seconds['median']:.2f}", span, memory]


def _span(spread: dict[str, Any]) -> str:
    return f"{short(spread['least'])} - {short(spread['most'])}"


if __name__ == "__main__":
    raise SystemExit(run_job("benchmark"))
