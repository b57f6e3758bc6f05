"""What goes wrong between a client and the test store, by rule and by chance."""

import dataclasses
import random
import re
import threading

KINDS = ("503", "429", "refused", "broken_request", "lost_answer", "cut_answer", "slow")
"""Answers 503 and 429; a connection that ends before the request, in the middle of its body, after
it was carried out but before the answer, or in the middle of the answer; an answer that is late."""
_MOST_IN_A_ROW = 6


@dataclasses.dataclass
class FaultRule:
    """Faults of some kinds for the requests that match.

    Args:
        kinds: names of `KINDS`, of which one is drawn.
        method: str. Regular expression of the method; all by default.
        path: str. Regular expression found in the decoded path with its query.
        probability: float. How often a request that matches meets a fault.
        count: int. Faults until the rule ends.
        skip: int. Requests that match and are let through first.
    """

    kinds: tuple[str, ...]
    method: str = ".*"
    path: str = ""
    probability: float = 1.0
    count: int = 1 << 30
    skip: int = 0


class StoreFaults:
    """Draws the fault of each request."""

    def __init__(self) -> None:
        self.injected: dict[str, int] = {}
        self._lock = threading.Lock()
        self._rules: list[FaultRule] = []
        self._random = random.Random(0)
        self._in_a_row: dict[str, int] = {}

    def set_rules(self, rules: list[dict[str, object]], seed: int = 0) -> None:
        with self._lock:
            self._rules = [FaultRule(**rule) for rule in rules]
            self._random = random.Random(seed)
            self._in_a_row.clear()

    def draw(self, method: str, path: str) -> str | None:
        """The kind of the fault, or `None`.

        Chance alone does not go beyond the client's patience, which ends after ten
        faults of a request in a row; a rule without chance does.
        """
        with self._lock:
            for rule in self._rules:
                if not (re.fullmatch(rule.method, method) and re.search(rule.path, path)):
                    continue
                if rule.skip > 0:
                    rule.skip -= 1
                    continue
                key = f"{method} {path}"
                is_due = rule.count > 0 and self._random.random() < rule.probability
                is_chance = rule.probability < 1.0
                if not is_due or (is_chance and self._in_a_row.get(key, 0) >= _MOST_IN_A_ROW):
                    continue
                rule.count -= 1
                kind = self._random.choice(list(rule.kinds))
                self.injected[kind] = self.injected.get(kind, 0) + 1
                self._in_a_row[key] = self._in_a_row.get(key, 0) + 1
                return kind
            self._in_a_row.pop(f"{method} {path}", None)
            return None
