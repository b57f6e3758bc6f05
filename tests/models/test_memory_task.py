"""The documented recipe for an agent, on a task that needs a memory."""

import numpy as np
import pytest
import tensorflow as tf

from tests.documented_code import blocks_of_python
from tests.reference import max_difference
from tests.source_tree import ROOT

RECIPE = (ROOT / "pipelines" / "EXAMPLES.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("memory_length", [16, 0])
def test_an_agent_learns_what_it_has_to_remember(memory_length):
    """Cue and decision are further apart than a segment; the turn is 1 or -1 by chance."""
    (code,) = [block for block in blocks_of_python(RECIPE) if "class Maze" in block]
    names = {}
    exec(code.replace("MEMORY = 32, 4, 16", f"MEMORY = 32, 4, {memory_length}"), names)
    assert names["model"].config.memory_length == memory_length
    reward = np.mean(names["rewarded"][-500:])
    assert reward > 0.95 if memory_length else abs(reward) < 0.2
    # Learning from a segment has the numbers of acting, also where an episode ends within it.
    observations, is_new, *_ = (
        np.stack(each, axis=1) for each in zip(*names["steps"], strict=True)
    )
    assert is_new[:, 1:].any()
    memory, logits = names["before"], []
    for step in range(names["STEPS"]):
        action_logits, memory = names["act"](observations[:, step], is_new[:, step], memory)
        logits.append(action_logits)
    encoded = names["encoder"](observations)
    hidden, _ = names["model"](encoded, names["before"], document_starts=tf.constant(is_new))
    assert max_difference(names["policy"](hidden), np.stack(logits, axis=1)) < 1e-4
