"""Sessions of models whose memory is no keys and values, against the model itself."""

import numpy as np
import pytest

from tests.generation.models import expressive, prompt
from tests.layer_checks import randomize_weights
from tests.toy_batches import SEGMENT_LENGTH, VOCABULARY_SIZE
from txl_tf.config.model import LSTMConfig, QRNNConfig
from txl_tf.generation import GenerationSession, generate
from txl_tf.models import create_model
from txl_tf.samplers import BeamSampler, GreedySampler

SIZES = {
    "vocabulary_size": VOCABULARY_SIZE,
    "num_layers": 1,
    "hidden_dim": 6,
    "segment_length": SEGMENT_LENGTH,
    "dropout": 0.0,
}
RAGGED = [prompt(2, 1)[0], prompt(8, 1)[0]]


def made(kind):
    if kind == "learned":
        return expressive(position_encoding="learned", num_positions=9)
    if kind == "sinusoidal":
        return expressive(position_encoding="sinusoidal")
    model = create_model({"lstm": LSTMConfig, "qrnn": QRNNConfig}[kind](**SIZES))
    randomize_weights(model)
    return model


@pytest.fixture(scope="module", params=["sinusoidal", "learned", "lstm", "qrnn"])
def model(request):
    return made(request.param)


def greedy_by_the_model(model, row, num_tokens):
    """Segments of the prompt but its last token, then token by token."""
    memory = model.initial_memory(1)
    for start in range(0, len(row) - 1, SEGMENT_LENGTH):
        _, memory = model(row[None, start : min(start + SEGMENT_LENGTH, len(row) - 1)], memory)
    token, found = row[None, -1:], []
    for _ in range(num_tokens):
        log_probs, memory = model.log_probs(token, memory)
        token = np.argmax(log_probs, axis=-1)
        found.append(int(token[0, 0]))
    return found


def test_rows_of_several_lengths_are_those_of_the_model_alone(model):
    written, memory = generate(model, RAGGED, max_tokens=7, sampler=GreedySampler())
    assert written.tolist() == [greedy_by_the_model(model, row, 7) for row in RAGGED]
    assert isinstance(memory, type(model.initial_memory(1)))


def test_a_row_that_ended_keeps_its_memory():
    model = made("lstm")
    free = [greedy_by_the_model(model, row, 9) for row in RAGGED]
    stop = free[0][1]
    session = GenerationSession(model, GreedySampler(), num_rows=2, stop_token_ids=[stop])
    written = session.write(RAGGED, max_tokens=9)
    more = session.write(RAGGED, max_tokens=1)
    for row, begun, further in zip(RAGGED, written, more, strict=True):
        text = np.concatenate([row, begun[begun >= 0], row])
        # Recurrent states do not depend on where segments begin.
        assert further.tolist() == greedy_by_the_model(model, text, 1)


def test_one_beam_is_greedy_and_several_score_higher():
    model = made("lstm")
    prompt_ids = prompt(4, 2)

    def log_probability(rows):
        text = np.concatenate([prompt_ids, rows], axis=1)
        nll, _ = model.score(text[:, :-1], text[:, 1:], model.initial_memory(2))
        return -np.sum(nll[:, 3:], axis=1)

    greedy, _ = generate(model, prompt_ids, max_tokens=5, sampler=GreedySampler())
    one, _ = generate(model, prompt_ids, max_tokens=5, sampler=BeamSampler(1))
    several, _ = generate(model, prompt_ids, max_tokens=5, sampler=BeamSampler(20))
    np.testing.assert_array_equal(one, greedy)
    assert (log_probability(several) >= log_probability(greedy) - 1e-5).all()


def test_a_memory_of_another_model_or_length_is_refused():
    with pytest.raises(ValueError, match=r"a recurrent model\. Received: memory_length=7"):
        GenerationSession(made("lstm"), GreedySampler(), memory_length=7)
    memory = made("lstm").initial_memory(1)
    with pytest.raises(ValueError, match="must be like Memory"):
        GenerationSession(made("sinusoidal"), GreedySampler(), memory=memory)
