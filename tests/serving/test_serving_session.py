"""Sessions on TensorFlow Serving, over both transports, with an export's real signatures."""

import json
import urllib.request

import keras
import ml_dtypes
import numpy as np
import pytest

import txl_tf
from tests.serving.model_server import MODEL_NAME, serving
from tests.toy_batches import toy_experiment
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer
from txl_tf.export import ExportOptions
from txl_tf.serving import PredictionError, SamplingSettings, ServingSession

CONFIG = toy_experiment(model={"num_layers": 2, "vocabulary_size": 256}).model
GREEDY = SamplingSettings(temperature=0.0)
TEXT = "Two roads diverged in a yellow wood"


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def served(request, tmp_path_factory):
    keras.utils.set_random_seed(1234)
    folder = tmp_path_factory.mktemp("export") / "1"
    options = ExportOptions(memory_dtype=request.param)
    model = txl_tf.TransformerXL(CONFIG)
    txl_tf.export_saved_model(model, folder, {}, tokenizer=ByteTokenizer(), options=options)
    with serving(folder) as (transports, address):
        yield request.param, transports, address


@pytest.mark.slow
def test_both_transports_give_equal_texts_scores_and_memory(served):
    memory_dtype, transports, address = served
    if memory_dtype == "bfloat16":
        with pytest.raises(PredictionError, match="bfloat16"):
            ServingSession(transports["rest"]).score_text(TEXT)
        answers(transports["grpc"], memory_dtype)
        return
    found = [answers(each, memory_dtype) for each in transports.values()]
    for left, right in zip(*found, strict=True):
        np.testing.assert_array_equal(left, right)
    body = json.dumps({"instances": ["one text"]}).encode()
    url = f"{address}/v1/models/{MODEL_NAME}:predict"
    with urllib.request.urlopen(url, body, timeout=60) as response:
        assert len(json.load(response)["predictions"]) == 1


def answers(transport, memory_dtype):
    """Results of each method on a text, compared with those of the other methods."""
    texts = ServingSession(transport)
    nll = texts.score_text(TEXT)
    written = texts.generate_text(6, settings=GREEDY)
    assert texts.state.memory_states.dtype == np.dtype(memory_dtype)
    ids = ServingSession(transport)
    np.testing.assert_array_equal(ids.score(list(TEXT.encode())), nll)
    written_ids, written_nll = ids.generate(6, settings=GREEDY)
    assert bytes(written_ids.tolist()) == written
    assert (ids.state.last_token_id, texts.state.last_token_id) == (written_ids[-1],) * 2
    before = ids.state
    with pytest.raises(PredictionError, match=r"token_ids\[0, 1\] is 256") as caught:
        ids.score([256, 1])
    assert caught.value.code == "INVALID_ARGUMENT" and ids.state is before
    rounded = ServingSession(transport, compress_memory=True)
    exact = ServingSession(transport)
    for piece in (TEXT[:9], TEXT[9:]):
        near = exact.score_text(piece)
        np.testing.assert_allclose(rounded.score_text(piece), near, rtol=0.02, atol=0.02)
    assert rounded.state.memory_states.dtype == ml_dtypes.bfloat16
    return nll, written_ids, written_nll
