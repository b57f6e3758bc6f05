"""Other implementations of the model that do the same work in turns with this one."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from txl_tf.errors import JobError

from ..progress import say
from .rounds import count_for, short
from .turn_process import TurnProcess

_FOLDER = Path(__file__).parent


class ReadyPeer(NamedTuple):
    """Peer that can begin, in the variant in which it is fastest."""

    process: TurnProcess
    num_times: int
    """Times that it does its work in a turn."""
    variant: str


@dataclasses.dataclass(frozen=True)
class Peer:
    """Another implementation, run by a Python that has it.

    Attributes:
        name: str.
        program: path of the file with `create`, see `turn_server`.
        works: tuple of str. The suites that it can do.
        variants: mapping of a name to what it adds to the request.
        environment: mapping of variables of the process.
    """

    name: str
    program: Path
    works: tuple[str, ...]
    variants: Mapping[str, Mapping[str, Any]]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def start_fastest(
        self, python: str, request: Mapping[str, Any], turn_seconds: float
    ) -> ReadyPeer:
        """Tries all variants and starts the fastest.

        Args:
            python: str. Path of a Python that has the implementation.
            request: dict. What it is to do.
            turn_seconds: float. How long a turn takes.

        Raises:
            JobError: If it cannot do the work in any variant.
        """
        best: ReadyPeer | None = None
        best_rate, failure = 0.0, None
        for name, settings in self.variants.items():
            try:
                rate, ready = self._start(name, python, {**request, **settings}, turn_seconds)
            except JobError as error:
                say(f"{self.name} cannot do it in {name}: {error.what}")
                failure = error
                continue
            say(f"{self.name} in {name}: {short(rate)} tokens/s")
            if rate > best_rate:
                best, best_rate, ready = ready, rate, best
            if ready is not None:
                ready.process.close()
        if best is None:
            assert failure is not None
            raise failure
        return best

    def _start(
        self, variant: str, python: str, request: Mapping[str, Any], turn_seconds: float
    ) -> tuple[float, ReadyPeer | None]:
        process = TurnProcess.of_program(
            self.name, python, self.program, request, **self.environment
        )
        try:
            count = count_for(process.turn, turn_seconds)
            figures = process.turn(count)
        except BaseException:
            process.close()
            raise
        return figures["tokens"] / figures["seconds"], ReadyPeer(process, count, variant)


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "hugging_face",
            _FOLDER / "hugging_face_peer.py",
            ("train", "evaluate", "generate"),
            {"float32": {"dtype": "float32"}, "bfloat16": {"dtype": "bfloat16"}},
        ),
        Peer(
            "model_garden",
            _FOLDER / "model_garden_peer.py",
            ("train", "evaluate"),
            {
                "float32": {"jit_compile": False},
                "float32 with XLA": {"jit_compile": True},
            },
            {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        ),
    )
}
"""The peers by name."""
