"""A session that is saved goes on as if it had not been."""

import numpy as np
import pytest

from tests.generation.models import expressive, prompt
from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError
from txl_tf.generation import GenerationSession
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.samplers import RandomSampler

ROWS = [prompt(3, 1)[0], prompt(17, 1)[0]]


@pytest.fixture(scope="module")
def model():
    return expressive()


def session(model, num_rows=2, **options):
    options = {"jit_compile": False, "repetition_penalty": 1.3, **options}
    return GenerationSession(model, RandomSampler(), num_rows=num_rows, **options)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    """A file, and the text that goes on after it with the memory to the bit."""
    path = tmp_path_factory.mktemp("session") / "session.npz"
    running = session(model, seed=7, stop_token_ids=[0])
    running.write(ROWS, max_tokens=6)
    running.save(path)
    return path, running.write(max_tokens=70), running.memory


def test_a_session_goes_on_bit_by_bit_in_another_process_state(model, saved):
    path, expected, memory = saved
    loaded = session(model, stop_token_ids=[0])
    loaded.load(path)
    np.testing.assert_array_equal(loaded.write(max_tokens=70), expected)
    for found, other in zip(loaded.memory.keys, memory.keys, strict=True):
        np.testing.assert_array_equal(found, other)


def test_a_session_that_has_read_nothing_can_be_saved(model, tmp_path):
    new = session(model, seed=4)
    new.save(tmp_path / "new.npz")
    other = session(model)
    other.load(tmp_path / "new.npz")
    np.testing.assert_array_equal(other.write(ROWS, max_tokens=3), new.write(ROWS, max_tokens=3))


def test_half_precision_is_kept(tmp_path):
    model = TransformerXL(expressive().config, dtype="mixed_bfloat16")
    running = session(model)
    running.write(ROWS, max_tokens=2)
    running.save(tmp_path / "half.npz")
    expected = running.memory
    running.load(tmp_path / "half.npz")
    assert running.memory.keys[0].dtype == "bfloat16"
    for found, other in zip(running.memory.keys, expected.keys, strict=True):
        np.testing.assert_array_equal(found, other)


def test_another_model_is_refused(model, saved):
    weights = expressive()
    weights.weights[0].assign_add(np.full(weights.weights[0].shape, 1e-3))
    with pytest.raises(MismatchError, match="another model: weights_sha256 differ"):
        session(weights).load(saved[0])
    config = expressive(clamp_length=30)
    with pytest.raises(MismatchError, match="another model: config differ"):
        session(config).load(saved[0])


def test_another_number_of_rows_or_memory_length_is_refused(model, saved):
    for options in ({"num_rows": 3}, {"memory_length": 9}):
        with pytest.raises(MismatchError, match="another number of rows or another memory"):
            session(model, **options).load(saved[0])


def test_every_damage_is_noticed(model, saved, tmp_path):
    content = saved[0].read_bytes()
    loading = session(model)
    path = tmp_path / "damaged.npz"
    places = np.random.default_rng(0).integers(0, len(content), size=40)
    changed = 0
    for place in places:
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            loading.load(path)
        except (DataDamagedError, MismatchError):
            changed += 1
    # A bit of a date or an attribute in the archive's directory may say nothing.
    assert changed >= 36
    for length in (0, 1, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(DataDamagedError, match="The file is no session, or damaged"):
            loading.load(path)


def test_a_file_that_is_not_there_is_missing(model, tmp_path):
    with pytest.raises(InputMissingError, match="There is no session"):
        session(model).load(tmp_path / "none.npz")


def test_a_file_that_cannot_be_replaced_stays(model, saved, tmp_path, monkeypatch):
    path = tmp_path / "session.npz"
    path.write_bytes(saved[0].read_bytes())

    def full(*_, **__):
        raise OSError("no space left")

    running = session(model)
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space left"):
        running.save(path)
    assert path.read_bytes() == saved[0].read_bytes()
    assert [each.name for each in tmp_path.iterdir()] == ["session.npz"]
