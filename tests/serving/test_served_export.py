"""The client and the server on what `export_saved_model` writes."""

import keras
import ml_dtypes
import numpy as np
import pytest

import txl_tf
from tests.serving.servers import TRANSPORTS, running_server
from tests.toy_batches import toy_experiment
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer
from txl_tf.export import ExportOptions
from txl_tf.serving import PredictionError, SamplingSettings, ServingSession
from txl_tf.serving.errors import StatusCode

CONFIG = toy_experiment(model={"num_layers": 2, "vocabulary_size": 256}).model
GREEDY = SamplingSettings(temperature=0.0)
TEXT = "Two roads diverged in a yellow wood"


@pytest.fixture(params=["float32", "bfloat16"])
def served(request, tmp_path):
    keras.utils.set_random_seed(1234)
    model = txl_tf.TransformerXL(CONFIG)
    options = ExportOptions(memory_dtype=request.param)
    folder = tmp_path / "1"
    txl_tf.export_saved_model(model, folder, {}, tokenizer=ByteTokenizer(), options=options)
    with running_server("loopback", tmp_path) as server:
        yield request.param, server


@pytest.mark.slow
def test_every_signature_of_an_export_is_served(served):
    memory_dtype, server = served
    answers = []
    for name in TRANSPORTS:
        transport = server.transport(name)
        if (memory_dtype, name) == ("bfloat16", "rest"):
            with pytest.raises(PredictionError, match="bfloat16") as caught:
                ServingSession(transport).score_text(TEXT)
            assert caught.value.code == StatusCode.UNIMPLEMENTED
        else:
            answers.append(answers_over(transport, memory_dtype))
        transport.close()
    for others in answers[1:]:
        for left, right in zip(answers[0], others, strict=True):
            np.testing.assert_array_equal(left, right)


def answers_over(transport, memory_dtype):
    """What each method says of a text, which is held against the other methods."""
    texts = ServingSession(transport)
    nll = texts.score_text(TEXT)
    candidates, probabilities = texts.next_token_text()
    written = texts.generate_text(6, settings=GREEDY)
    assert written[:1] == candidates[0]
    assert texts.state.memory_states.dtype == np.dtype(memory_dtype)
    ids = ServingSession(transport)
    np.testing.assert_array_equal(ids.score(list(TEXT.encode())), nll)
    np.testing.assert_array_equal(ids.next_token()[1], probabilities)
    written_ids, written_nll = ids.generate(6, settings=GREEDY)
    assert bytes(written_ids.tolist()) == written
    with pytest.raises(PredictionError, match=r"token_ids\[0, 1\] is 256") as caught:
        ids.score([256, 1])
    assert caught.value.code == StatusCode.INVALID_ARGUMENT
    exact = ServingSession(transport)
    rounded = ServingSession(transport, compress_memory=True)
    for piece in (TEXT[:9], TEXT[9:]):
        np.testing.assert_allclose(
            rounded.score_text(piece), exact.score_text(piece), rtol=0.02, atol=0.02
        )
    assert rounded.state.memory_states.dtype == ml_dtypes.bfloat16
    return nll, probabilities, written_ids, written_nll
