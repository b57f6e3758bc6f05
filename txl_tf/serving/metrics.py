"""Figures of the text server for Prometheus."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class ServerMetrics:
    """Counters, gauges and histograms of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        common: dict[str, Any] = {"namespace": "txl", "registry": self.registry}
        self.requests = Counter("requests", "Requests by HTTP status.", ["status"], **common)
        self.request_seconds = Histogram(
            "request_seconds", "Time to the end of a request.", **common
        )
        self.queue_seconds = Histogram("queue_seconds", "Time in the queue of a text.", **common)
        self.rows = Histogram("rows", "Texts that get tokens at once.", buckets=_ROWS, **common)
        self.prompt_tokens = Counter("prompt_tokens", "Tokens read.", **common)
        self.completion_tokens = Counter("completion_tokens", "Tokens written.", **common)
        self.waiting = Gauge("texts_waiting", "Texts in the queue.", **common)
        self.running = Gauge("texts_running", "Texts that are read or written.", **common)
        self.sessions = Gauge("texts_sessions", "Sessions that rest.", **common)
