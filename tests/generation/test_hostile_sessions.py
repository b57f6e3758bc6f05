"""Session files that no session has written: refused before they can do anything."""

import io
import json
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.generation.models import expressive, prompt
from tests.generation.session_parts import content_of, fields_of, parts_of, replaced, without
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
    return content_of(replaced(header, ("values", field), value), arrays)


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
        ("position", 1.0),
        ("position", True),
        ("position", "1"),
        ("position", 2**31),
        ("position", 2**63),
        ("filled", -1),
        ("filled", 7),
        ("filled", 65),
        ("has_pending", 1),
        ("has_pending", False),
        ("has_pending", None),
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
        ("recent.keys.0", -np.inf, np.float32),
        ("memory.valid_length", 41, np.int32),
        ("memory.valid_length", -1, np.int32),
        ("recent.length", 7, np.int32),
        ("recent.length", 5, np.int32),
        ("lengths", 7, np.int32),
        ("lengths", -1, np.int32),
        ("pending", VOCABULARY_SIZE, np.int32),
        ("pending", -1, np.int32),
        ("is_used", 2, np.uint8),
    ],
)
def test_contents_that_cannot_be_are_refused_by_their_field(load, good, field, value, dtype):
    with pytest.raises(DataDamagedError, match=f"npz, {field}"):
        load(with_array(good, field, value, dtype))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**65)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([0, -1, 2**31 - 1, 2**31, 2**63, "", "\ud800", "float32", 1e300]),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3)
    ),
    max_leaves=6,
)
FAST = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@FAST
@given(st.data())
def test_every_field_of_the_header_may_be_anything(load, good, data):
    header, arrays = parts_of(good)
    path = data.draw(st.sampled_from(list(fields_of(header))))
    new = data.draw(JSON)
    loads = loads_or_is_refused(load, content_of(replaced(header, path, new), arrays))
    # Another position is another session. All else must be what it was.
    if loads and path[:1] != ("values",):
        assert replaced(header, path, new) == header


@FAST
@given(st.data())
def test_every_field_of_the_header_may_be_missing_or_doubled(load, good, data):
    header, arrays = parts_of(good)
    path = data.draw(st.sampled_from([path for path in fields_of(header) if path]))
    assert not loads_or_is_refused(load, content_of(without(header, path), arrays))
    text = json.dumps(header)
    name = data.draw(st.sampled_from([path[-1] for path in fields_of(header) if path]))
    if isinstance(name, str):
        doubled = text.replace(f'"{name}":', f'"{name}": 0, "{name}":', 1)
        assert doubled != text
        assert not loads_or_is_refused(load, content_of(doubled.encode(), arrays))


@FAST
@given(st.integers(0, 13), st.floats(0, 1), st.binary(min_size=1, max_size=8))
@example(11, 0.0, b"\xff\xff\xff\x7f")
def test_every_array_may_hold_anything(load, good, index, place, new):
    header, arrays = parts_of(good)
    raw = bytearray(arrays[f"array_{index}"].tobytes())
    start = int(place * (len(raw) - 1))
    raw[start : start + len(new)] = new[: len(raw) - start]
    arrays[f"array_{index}"] = np.frombuffer(bytes(raw), np.uint8)
    loads_or_is_refused(load, content_of(header, arrays))


@FAST
@given(st.integers(0, 13), st.sampled_from(["cut", "longer", "missing", "float", "2d", "object"]))
def test_every_array_may_have_another_form(load, good, index, form):
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


@FAST
@given(
    # Most bytes are numbers of memory, so half of the places are among names and sizes.
    st.lists(
        st.tuples(st.integers(-1500, 600) | st.integers(0, 2**20), st.integers(0, 255)),
        min_size=1,
        max_size=3,
    )
)
def test_every_byte_of_the_file_may_be_another(load, good, changes):
    content = bytearray(good)
    for place, byte in changes:
        content[place % len(good)] = byte
    loads_or_is_refused(load, bytes(content))


@FAST
@given(st.integers(0, 2**20))
def test_a_file_may_end_anywhere(load, good, length):
    length %= len(good)
    with pytest.raises((DataDamagedError, MismatchError)):
        load(good[:length])


def test_a_small_file_that_unpacks_to_gigabytes_is_refused_before_it_is_unpacked(load, good):
    header, arrays = parts_of(good)
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
    # A header that asks for more than there is: nothing is reserved for it.
    claimed = bytearray(content_of(header, arrays))
    place = claimed.find(b"'shape': (", claimed.find(b"array_0.npy"))
    claimed[place : place + 20] = b"'shape': (99999999,)"
    with pytest.raises(DataDamagedError):
        load(bytes(claimed))


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
