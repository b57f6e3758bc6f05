"""Many texts at one server in random order.

Each session makes the same requests in the same order, whatever the others do,
so each text must be what it is when the session is alone.
"""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from txl_tf.serving import SamplingSettings, ServingSession

NUM_SESSIONS = 50
NUM_STEPS = 2
NUM_TOKENS = 3


class Text:
    """A text that grows by a step at a time, whoever asks for it."""

    def __init__(self, number, transport):
        self._number = number
        self._session = ServingSession(transport)
        self._lock = threading.Lock()
        self._num_steps = 0
        self.token_ids = []

    def step(self):
        """Reads a few tokens, writes a few; greedy in every other session."""
        with self._lock:
            draw = np.random.default_rng([self._number, self._num_steps])
            read = draw.integers(0, 256, size=int(draw.integers(1, 6)))
            temperature = float(self._number % 2)
            settings = SamplingSettings(temperature=temperature, seed=self._num_steps)
            written, _ = self._session.generate(NUM_TOKENS, read, settings)
            self.token_ids += [*read.tolist(), *written.tolist()]
            self._num_steps += 1


def texts_alone(transport):
    """The texts of all sessions, one after the other."""
    found = []
    for number in range(NUM_SESSIONS):
        text = Text(number, transport)
        for _ in range(NUM_STEPS):
            text.step()
        found.append(text.token_ids)
    return found


def texts_interleaved(transport, seed, num_threads=4):
    """The texts of all sessions, in random order and several at a time."""
    texts = [Text(number, transport) for number in range(NUM_SESSIONS)]
    order = texts * NUM_STEPS
    random.Random(seed).shuffle(order)
    with ThreadPoolExecutor(num_threads) as threads:
        list(threads.map(Text.step, order))
    return [text.token_ids for text in texts]
