"""Figures in the files of TensorBoard: as they are, or as large as a summary can hold."""

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.small_models import small_result
from txl_tf.training.tensorboard import TensorBoardWriter


@pytest.mark.parametrize("total_nats", [30.0, 4000.0, 1e6])
def test_every_figure_of_an_evaluation_is_written(total_nats, tmp_path):
    """A text without spaces is one word, whose perplexity no float32 holds."""
    result = small_result(total_nats=total_nats, num_words=1.0, num_tokens=12)
    TensorBoardWriter(tmp_path, bytes_per_token=1.0).write_evaluation(result)
    events = EventAccumulator(str(tmp_path / "valid")).Reload()
    written = {
        tag: float(tf.make_ndarray(events.Tensors(tag)[-1].tensor_proto))
        for tag in events.Tags()["tensors"]
    }
    losses = [
        "nats_per_token",
        "perplexity",
        "bits_per_byte",
        "bits_per_character",
        "word_perplexity",
    ]
    expected = {f"loss/{name}": getattr(result, name) for name in losses}
    expected["performance/evaluation_seconds"] = result.seconds
    largest = float(np.finfo(np.float32).max)
    assert written == {
        tag: pytest.approx(min(value, largest), rel=1e-6) for tag, value in expected.items()
    }
