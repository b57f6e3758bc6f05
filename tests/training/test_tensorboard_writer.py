"""Figures of a run in TensorBoard: all of them, each once."""

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.small_models import small_result
from txl_tf.training.figures import evaluation_figures
from txl_tf.training.tensorboard_writer import TensorBoardWriter


@pytest.mark.parametrize("total_nats", [30.0, 1e6])
def test_every_figure_of_an_evaluation_is_written_for_tensorboard(total_nats, tmp_path):
    """A text without spaces is one word, whose perplexity no float32 holds."""
    result = small_result(total_nats=total_nats, num_words=1.0, num_tokens=12)
    TensorBoardWriter(tmp_path).write_evaluation(result)
    events = EventAccumulator(str(tmp_path / "valid")).Reload()
    written = {
        tag: tf.make_ndarray(events.Tensors(tag)[-1].tensor_proto).item()
        for tag in events.Tags()["tensors"]
    }
    assert written.pop("conditions").decode() == result.conditions
    largest = float(np.finfo(np.float32).max)
    assert written == {
        tag: pytest.approx(min(value, largest), rel=1e-6)
        for tag, value in evaluation_figures(result).items()
    }


def test_a_resumed_run_has_every_figure_once_in_tensorboard(tmp_path):
    def write(steps):
        board = TensorBoardWriter(tmp_path)
        for step in steps:
            board.write_figures(step, "valid", {"loss/perplexity": step / 2})

    write([1, 2])
    (file,) = (tmp_path / "valid").iterdir()
    file.write_bytes(file.read_bytes() + b"cut")  # by a kill
    write([2, 3])
    events = EventAccumulator(str(tmp_path / "valid")).Reload().Tensors("loss/perplexity")
    points = [(event.step, tf.make_ndarray(event.tensor_proto).item()) for event in events]
    assert points == [(1, 0.5), (2, 1.0), (3, 1.5)]
