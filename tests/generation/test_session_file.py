"""A session that is saved continues as if it had not been; a file of another kind is refused."""

import io
import os

import numpy as np
import pytest

from tests.generation.models import RAGGED, expressive, recurrent
from txl_tf.config.model import LSTMConfig
from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError
from txl_tf.generation import GenerationSession
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.samplers import RandomSampler

ROWS = RAGGED[:2]


def session(model, num_rows=2, **options):
    options = {"jit_compile": False, "repetition_penalty": 1.3, **options}
    return GenerationSession(model, RandomSampler(), num_rows=num_rows, **options)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    """A file, and the text after it."""
    path = tmp_path_factory.mktemp("session") / "session.npz"
    running = session(model, seed=7, stop_token_ids=[0])
    running.write(ROWS, max_tokens=6)
    running.save(path)
    return path, running.write(max_tokens=70)


@pytest.mark.parametrize(
    "made",
    [
        expressive,
        lambda: TransformerXL(expressive().config, dtype="mixed_bfloat16"),
        lambda: recurrent(LSTMConfig),
        lambda: expressive(position_encoding="sinusoidal"),
    ],
)
def test_a_session_continues_bit_by_bit_also_before_anything_is_read(made, tmp_path):
    model, path = made(), f"ram://{tmp_path.name}/story.npz"
    running, other = session(model, num_rows=1), session(model, num_rows=1)
    for prompt_ids in (ROWS[:1], None):
        running.save(path)
        other.load(path)
        texts = [each.write(prompt_ids, max_tokens=70) for each in (running, other)]
        np.testing.assert_array_equal(*texts)
    for one, same in zip(running.memory[0], other.memory[0], strict=True):
        np.testing.assert_array_equal(one, same)


def test_another_model_or_size_is_refused(model, saved):
    changed = expressive()
    changed.weights[0].assign_add(np.full(changed.weights[0].shape, 1e-3))
    for other in (session(changed), session(expressive(clamp_length=30))):
        with pytest.raises(MismatchError, match="another model"):
            other.load(saved[0])
    for other in (session(model, num_rows=3), session(model, memory_length=9)):
        with pytest.raises(MismatchError, match="number of rows or memory"):
            other.load(saved[0])


def contents(arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def test_a_damaged_or_altered_file_is_refused_and_the_session_unchanged(model, saved, tmp_path):
    good = saved[0].read_bytes()
    with np.load(saved[0]) as archive:
        arrays = dict(archive)
    begin = good.index(arrays["memory.0"].tobytes())
    flips = begin + np.random.default_rng(0).integers(0, arrays["memory.0"].nbytes, size=20)
    files = [good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :] for place in flips]
    files += [good[:length] for length in (0, 1, len(good) // 2, len(good) - 1)]
    for name in ("memory.0", "pending", "position"):
        array = arrays[name]
        for wrong in (array[None], array.astype("f8"), [None]):
            files.append(contents({**arrays, name: np.array(wrong)}))
        files.append(contents({other: each for other, each in arrays.items() if other != name}))
    files.append(contents({**arrays, "more": arrays["seeds"]}))
    loading, path = session(model, stop_token_ids=[0]), tmp_path / "wrong.npz"
    loading.load(saved[0])
    for content in files:
        path.write_bytes(content)
        with pytest.raises((DataDamagedError, MismatchError)) as failure:
            loading.load(path)
        assert len(str(failure.value).splitlines()) <= 3
    np.testing.assert_array_equal(loading.write(max_tokens=70), saved[1])
    os.mkfifo(tmp_path / "pipe.npz")
    for place, error in (("pipe.npz", DataDamagedError), ("none.npz", InputMissingError)):
        with pytest.raises(error):
            loading.load(tmp_path / place)
