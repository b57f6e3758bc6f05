"""Session files that no session has written: refused before they can do anything."""

import io
import json
import random
import zipfile

import numpy as np
import pytest

from tests.generation.models import expressive, prompt
from tests.toy_batches import VOCABULARY_SIZE
from txl_tf.errors import DataDamagedError, MismatchError
from txl_tf.generation import GenerationSession
from txl_tf.samplers import RandomSampler

NUM_LAYERS = 2
# In the order in which they are kept: memory, what is new, and what is known of the rows.
FIELDS = {
    "memory.keys.0": 0,
    "memory.values.1": 3,
    "memory.valid_length": 4,
    "recent.keys.0": 5,
    "recent.length": 9,
    "lengths": 10,
    "pending": 11,
    "is_used": 12,
    "seeds": 13,
}


def parts_of(content):
    """The header, and the other arrays by name."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return json.loads(arrays.pop("header").tobytes()), arrays


def content_of(header, arrays):
    contents = io.BytesIO()
    np.savez(contents, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
    return contents.getvalue()


@pytest.fixture(scope="module")
def session():
    rows = [prompt(3, 1)[0], prompt(17, 1)[0]]
    session = GenerationSession(expressive(), RandomSampler(), num_rows=2, jit_compile=False)
    session.write(rows, max_tokens=6)
    return session


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("sessions") / "session.npz"


@pytest.fixture(scope="module")
def good(session, tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "session.npz"
    session.save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def load(session, path, good):
    """Loads a content; what is refused must leave the session as it was."""

    def load(content):
        path.write_bytes(good)
        session.load(path)
        path.write_bytes(content)
        try:
            session.load(path)
        except (DataDamagedError, MismatchError) as error:
            assert len(str(error).splitlines()) <= 3
            assert str(error).isascii()
            session.save(path.with_name("after.npz"))
            assert path.with_name("after.npz").read_bytes() == good
            raise
        return session.write(max_tokens=1)

    return load


def loads_or_is_refused(load, content):
    """Whatever is loaded writes tokens of the vocabulary."""
    try:
        written = load(content)
    except (DataDamagedError, MismatchError):
        return False
    assert ((written >= 0) & (written < VOCABULARY_SIZE)).all()
    return True


def with_value(good, field, value):
    header, arrays = parts_of(good)
    values = {**header["values"], field: value}
    return content_of({**header, "values": values}, arrays)


def with_array(good, field, value, dtype):
    header, arrays = parts_of(good)
    name = f"array_{FIELDS[field]}"
    array = arrays[name].view(dtype).copy()
    array[-1] = value
    return content_of(header, {**arrays, name: array.view(np.uint8)})


def test_the_good_file_is_loaded(load, good):
    assert loads_or_is_refused(load, good)
    assert loads_or_is_refused(load, content_of(*parts_of(good)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("position", -1),
        ("position", True),
        ("position", 2**31),
        ("filled", -1),
        ("filled", 65),
        ("has_pending", 1),
    ],
)
def test_numbers_that_cannot_be_are_refused_by_their_field(load, good, field, value):
    with pytest.raises(DataDamagedError, match=rf"header, values\.{field}"):
        load(with_value(good, field, value))


@pytest.mark.parametrize(
    ("field", "value", "dtype"),
    [
        ("memory.keys.0", np.nan, np.float32),
        ("memory.values.1", np.inf, np.float32),
        ("memory.valid_length", 41, np.int32),
        ("recent.length", 7, np.int32),
        ("lengths", 7, np.int32),
        ("pending", VOCABULARY_SIZE, np.int32),
        ("pending", -1, np.int32),
        ("is_used", 2, np.uint8),
    ],
)
def test_contents_that_cannot_be_are_refused_by_their_field(load, good, field, value, dtype):
    with pytest.raises(DataDamagedError, match=f"npz, {field}"):
        load(with_array(good, field, value, dtype))


@pytest.mark.parametrize("form", ["cut", "longer", "missing", "float", "2d", "object"])
@pytest.mark.parametrize("index", [0, 9, 13])
def test_an_array_of_another_form_is_refused(load, good, index, form):
    header, arrays = parts_of(good)
    name = f"array_{index}"
    array = arrays.pop(name)
    forms = {
        "cut": array[:-1],
        "longer": np.append(array, array[-1:]),
        "float": array.astype(np.float64),
        "2d": array[None],
        "object": np.array([len(array)], object),
    }
    if form in forms:
        arrays[name] = forms[form]
    with pytest.raises(DataDamagedError):
        load(content_of(header, arrays))


def test_a_file_may_end_anywhere_and_every_byte_may_be_another(load, good):
    source = random.Random(0)
    for length in [0, len(good) - 1, *source.sample(range(len(good)), 8)]:
        with pytest.raises((DataDamagedError, MismatchError)):
            load(good[:length])
    # Most bytes are numbers of memory, so half of the places are among names and sizes.
    ends = [len(good) - 1 - place for place in source.sample(range(1500), 20)]
    for place in [*ends, *source.sample(range(len(good)), 20)]:
        content = bytearray(good)
        content[place] ^= 1 << source.randrange(8)
        loads_or_is_refused(load, bytes(content))


def test_a_small_file_that_unpacks_to_gigabytes_is_refused_before_it_is_unpacked(load, good):
    header, _ = parts_of(good)
    contents = io.BytesIO()
    with zipfile.ZipFile(contents, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("header.npy", "w") as file:
            np.lib.format.write_array(file, np.frombuffer(json.dumps(header).encode(), np.uint8))
        with archive.open("array_0.npy", "w", force_zip64=True) as file:
            shape = {"descr": "|u1", "fortran_order": False, "shape": (240 << 20,)}
            np.lib.format.write_array_header_1_0(file, shape)
            for _ in range(240):
                file.write(bytes(1 << 20))
    assert len(contents.getvalue()) < 2 << 20
    with pytest.raises(DataDamagedError, match="unpacks to 251,6"):
        load(contents.getvalue())


def test_members_that_are_not_expected_are_refused(load, good):
    header, arrays = parts_of(good)
    with pytest.raises(DataDamagedError, match="14 arrays are expected, and 15 are there"):
        load(content_of(header, {**arrays, "array_14": arrays["array_0"][:8]}))
    contents = io.BytesIO(good)
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zipfile.ZipFile(contents, "a") as archive,
    ):
        archive.writestr("array_11.npy", b"")
    with pytest.raises(DataDamagedError, match="array_11"):
        load(contents.getvalue())
    large = content_of({**header, "note": "x" * (1 << 20)}, arrays)
    with pytest.raises((DataDamagedError, MismatchError)):
        load(large)


def test_another_version_is_told_from_damage(load, good):
    header, arrays = parts_of(good)
    with pytest.raises(MismatchError, match="has format 2; this version reads 1"):
        load(content_of({**header, "format_version": 2}, arrays))
