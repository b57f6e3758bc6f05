"""A session that is saved goes on as if it had not been; a file that none has saved is refused."""

import io
import json

import numpy as np
import pytest

from tests.generation.models import expressive, prompt
from tests.toy_batches import VOCABULARY_SIZE
from txl_tf.errors import DataDamagedError, MismatchError
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


@pytest.fixture
def refused(model, saved, tmp_path):
    """Fails unless a content is refused, in three lines, and the session stays as it was."""
    loading = session(model, stop_token_ids=[0])
    loading.load(saved[0])
    path = tmp_path / "damaged.npz"

    def refused(content, match=None, errors=(DataDamagedError, MismatchError)):
        path.write_bytes(content)
        with pytest.raises(errors, match=match) as raised:
            loading.load(path)
        assert len(str(raised.value).splitlines()) <= 3
        loading.save(tmp_path / "after.npz")
        assert (tmp_path / "after.npz").read_bytes() == saved[0].read_bytes()

    return refused


def test_every_damage_is_noticed(model, saved, refused, tmp_path):
    content = saved[0].read_bytes()
    loading = session(model)
    path = tmp_path / "flipped.npz"
    changed = 0
    for place in np.random.default_rng(0).integers(0, len(content), size=40):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            loading.load(path)
        except (DataDamagedError, MismatchError):
            changed += 1
    # A bit of a date or an attribute in the archive's directory may say nothing.
    assert changed >= 36
    for length in (0, 1, len(content) // 2, len(content) - 1):
        refused(content[:length], "The file is no session, or damaged")


def parts_of(content):
    """The header, and the other arrays by name."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return json.loads(arrays.pop("header").tobytes()), arrays


def content_of(header, arrays):
    contents = io.BytesIO()
    np.savez(contents, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
    return contents.getvalue()


def test_numbers_and_contents_that_cannot_be_are_refused_by_their_field(saved, refused):
    header, arrays = parts_of(saved[0].read_bytes())
    for field, value in (
        ("position", -1),
        ("position", True),
        ("position", 2**31),
        ("filled", 65),
        ("has_pending", 1),
    ):
        changed = {**header, "values": {**header["values"], field: value}}
        refused(content_of(changed, arrays), rf"header, values\.{field}")
    for field, value in (
        ("memory.keys.0", np.nan),
        ("memory.values.1", np.inf),
        ("memory.valid_length", 41),
        ("recent.length", 7),
        ("lengths", 7),
        ("pending", VOCABULARY_SIZE),
        ("pending", -1),
    ):
        changed = {**arrays, field: np.full_like(arrays[field], value)}
        refused(content_of(header, changed), f"npz, {field}")
    broken = np.full(arrays["is_used"].shape, 2, np.uint8).view(bool)
    refused(content_of(header, {**arrays, "is_used": broken}), "npz, is_used")


def test_arrays_of_another_form_or_number_and_another_version_are_refused(saved, refused):
    header, arrays = parts_of(saved[0].read_bytes())
    for name in ("memory.keys.0", "lengths", "seeds"):
        array = arrays[name]
        for other in (
            array[:-1],
            np.append(array, array[-1:], axis=0),
            array.astype(np.float64),
            array[None],
            np.array([len(array)], object),
        ):
            refused(content_of(header, {**arrays, name: other}))
    extra = {**arrays, "more": arrays["lengths"]}
    refused(content_of(header, extra), "14 arrays are expected, and 15 are there")
    newer = content_of({**header, "format_version": 2}, arrays)
    refused(newer, "has format 2; this version reads 1", MismatchError)
    for wrong in ([], {}, {**header, "model": []}, {**header, "more": 1}):
        refused(content_of(wrong, arrays), "the header must have", DataDamagedError)
