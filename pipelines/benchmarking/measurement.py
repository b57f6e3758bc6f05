"""Measurement of the cases of a benchmark, each in fresh processes that take turns."""

import contextlib
import functools
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from txl_tf.errors import JobError

from ..progress import say
from .cases import Case
from .own_work import RATE_TYPES
from .peers import Peer
from .rounds import Spread, alternate, count_for, ratios, token_rates
from .turn_process import Figures, TurnProcess, own_environment

Row = dict[str, Any]
"""Figures of a case, as JSON can hold them."""

_COMMAND_LINE = f"{__name__.partition('.')[0]}.command_line"
_COMMANDS = {
    "help": ["-m", _COMMAND_LINE, "--help"],
    "import": ["-c", "import txl_tf; txl_tf.TransformerXL"],
}


class ChosenPeer(NamedTuple):
    """Peer to measure against, and the Python that has it."""

    peer: Peer
    python: str


class Measurement:
    """Measurement of cases one after the other; a context that ends its processes.

    Args:
        num_rounds: int.
        turn_seconds: float. How long a turn takes, about.
        chosen: optional `ChosenPeer` that takes turns with this project.
    """

    def __init__(
        self, num_rounds: int, turn_seconds: float, chosen: ChosenPeer | None = None
    ) -> None:
        self._num_rounds = num_rounds
        self._turn_seconds = turn_seconds
        self._chosen = chosen
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._exits.__exit__(*error)

    def measure(self, case: Case) -> Row:
        """Measures a case.

        Raises:
            JobError: If a process ends before its work is done.
        """
        say(f"measuring {case.suite}: {case.shape}")
        measure = self._measure_start if case.suite == "compile" else self._measure_tokens
        return {"suite": case.suite, "shape": case.shape, **measure(case)}

    @functools.cached_property
    def _rates(self) -> TurnProcess:
        """Process that measures the rates of products; all cases share it."""
        process = self._exits.enter_context(TurnProcess.of_this_project({"work": "rates"}))
        process.turn(1)  # starts TensorFlow
        return process

    def _measure_start(self, case: Case) -> Row:
        turn = functools.partial(_start, case)
        turn()  # what it reads is in memory from now on
        figures = alternate({"own": turn}, self._num_rounds)["own"]
        row: Row = {"seconds": Spread.of([each["seconds"] for each in figures]).to_dict()}
        if "peak_bytes" in figures[0]:
            row["peak_bytes"] = max(each["peak_bytes"] for each in figures)
        return row

    def _measure_tokens(self, case: Case) -> Row:
        with contextlib.ExitStack() as exits:
            own = exits.enter_context(TurnProcess.of_this_project(case.request))
            count = count_for(own.turn, self._turn_seconds)
            turns: dict[str, Callable[[], Figures]] = {"own": functools.partial(own.turn, count)}
            variant = None
            if self._chosen is not None:
                peer, python = self._chosen
                assert case.peer_request is not None
                ready = peer.start_fastest(python, case.peer_request, self._turn_seconds)
                exits.callback(ready.process.close)
                turns["peer"] = functools.partial(ready.process.turn, ready.num_times)
                variant = ready.variant
            if case.flops_per_token is not None:
                turns["rates"] = functools.partial(self._rates.turn, 1)
            figures = alternate(turns, self._num_rounds)
        row = _own_row(case, figures)
        if self._chosen is not None:
            row["peer"] = _peer_row(self._chosen.peer.name, variant, figures)
        return row


def _own_row(case: Case, figures: dict[str, list[Figures]]) -> Row:
    speed = token_rates(figures["own"])
    row: Row = {
        "tokens_per_second": speed.to_dict(),
        "peak_bytes": figures["own"][-1]["peak_bytes"],
    }
    if case.flops_per_token is None:
        return row
    rates = {name: Spread.of([each[name] for each in figures["rates"]]) for name in RATE_TYPES}
    flops = Spread.of([each * case.flops_per_token for each in speed.rounds])
    return {
        **row,
        "flops_per_token": case.flops_per_token,
        "product_rate": {name: rate.to_dict() for name, rate in rates.items()},
        "share_of_product_rate": {
            name: ratios(flops, rate).to_dict() for name, rate in rates.items()
        },
    }


def _peer_row(name: str, variant: str | None, figures: dict[str, list[Figures]]) -> Row:
    own, peer = (token_rates(figures[each]) for each in ("own", "peer"))
    return {
        "name": name,
        "variant": variant,
        "tokens_per_second": peer.to_dict(),
        "times_faster": ratios(own, peer).to_dict(),
        "peak_bytes": figures["peer"][-1]["peak_bytes"],
    }


def _start(case: Case) -> Figures:
    """Starts a process and waits for what the case is about."""
    if case.request["work"] == "first_step":
        with TurnProcess.of_this_project(case.request) as process:
            return {**process.ready, "seconds": process.ready_seconds}
    command = [sys.executable, *_COMMANDS[case.request["work"]]]
    begin = time.perf_counter()
    finished = subprocess.run(
        command, env=own_environment(), capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - begin
    if finished.returncode:
        said = finished.stderr.strip().rpartition("\n")[2]
        raise JobError(
            f"The process ended with exit code {finished.returncode}: {said[:300]}",
            where=" ".join(command),
            remedy="`txl doctor` finds what is wrong with an installation.",
        )
    return {"seconds": seconds}


def add_growth(rows: Sequence[Row]) -> None:
    """Adds the time and the arithmetic of a token, relative to the first row of its suite."""
    firsts: dict[str, Row] = {}
    for row in rows:
        if "flops_per_token" not in row:
            continue
        first = firsts.setdefault(row["suite"], row)
        before, now = (each["tokens_per_second"]["median"] for each in (first, row))
        row["relative_time_per_token"] = before / now
        row["relative_flops_per_token"] = row["flops_per_token"] / first["flops_per_token"]
