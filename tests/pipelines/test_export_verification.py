"""Damaged exports are refused, and the message names the file."""

import os

import numpy as np
import pytest

from pipelines.export_verification import verify_export
from tests.export.test_version_folder import small_root
from txl_tf.errors import DataDamagedError
from txl_tf.export.version_folder import CHECKSUMS_FILE, write_version

NUM_CASES = 500


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "1"
    root, signatures = small_root()
    files = {"assets.extra/model_card.json": b"{}\n", "assets.extra/model_card.md": b"# Card\n"}
    write_version(str(folder), root, signatures, {}, files)
    return folder


def damaged(content, random):
    """One flipped bit, a cut somewhere, or nothing (a file that is gone)."""
    kind = random.integers(3)
    place = int(random.integers(len(content)))
    if kind == 0:
        changed = bytearray(content)
        changed[place] ^= 1 << int(random.integers(8))
        return bytes(changed)
    return content[:place] if kind == 1 else None


def test_five_hundred_damages_are_refused_by_name(exported):
    random = np.random.default_rng(0)
    paths = sorted(path for path in exported.rglob("*") if path.is_file())
    verify_export(str(exported))
    for case in range(NUM_CASES):
        path = paths[case % len(paths)]
        content = path.read_bytes()
        changed = damaged(content, random)
        try:
            if changed is None:
                path.unlink()
            else:
                path.write_bytes(changed)
            with pytest.raises(DataDamagedError) as raised:
                pytest.fail(f"{path.name}, {verify_export(str(exported))} files")
            if path.name != CHECKSUMS_FILE:
                assert raised.value.where == str(path), case
            else:  # the list, or the file that it is wrong about
                assert raised.value.where.startswith(str(exported)), case
            assert raised.value.exit_code == 65
        finally:
            path.write_bytes(content)
    verify_export(str(exported))


def test_a_list_that_is_gone_or_cut_after_a_line_is_refused(exported):
    path = exported / CHECKSUMS_FILE
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    for changed in (b"", content[:-1], b"".join(lines[:-1]), content.replace(b"\n", b"\x0b", 1)):
        path.write_bytes(changed)
        with pytest.raises(DataDamagedError):
            pytest.fail(f"{changed!r}, {verify_export(str(exported))} files")
    path.unlink()
    with pytest.raises(DataDamagedError) as raised:
        verify_export(str(exported))
    assert raised.value.where == os.path.join(str(exported), CHECKSUMS_FILE)
    path.write_bytes(content)


def test_a_file_that_is_too_much_is_refused(exported):
    surplus = exported / "assets" / "surplus.txt"
    surplus.parent.mkdir(exist_ok=True)
    surplus.write_text("x")
    with pytest.raises(DataDamagedError, match="not in the list") as raised:
        verify_export(str(exported))
    assert raised.value.where == str(surplus)
    surplus.unlink()
