"""Puts the checksums right around a file that was changed, as an attacker would."""

import contextlib
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

from txl_tf.data.tokenizers import load_tokenizer
from txl_tf.errors import DataDamagedError
from txl_tf.training.checkpoint_format import checksum

_TABLE = []
for _byte in range(256):
    for _ in range(8):
        _byte = _byte >> 1 ^ (0x82F63B78 if _byte & 1 else 0)
    _TABLE.append(_byte)


def seal_data_manifest(values: Any) -> Any:
    """A data manifest with the right `manifest_sha256`, unless that is what was changed."""
    return _sealed(values, "manifest_sha256", lambda rest: _sha256(_canonical(rest)))


def seal_checkpoint_manifest(values: Any) -> Any:
    """A checkpoint's manifest with the right `manifest_sha256`."""
    return _sealed(values, "manifest_sha256", checksum)


def seal_note(values: Any) -> Any:
    """A note of the best checkpoint with the right `sha256`."""
    return _sealed(values, "sha256", checksum)


def seal_shard(path: Path) -> None:
    """The manifest of a data set, with the hash and size of a shard."""
    manifest = path.parent / "manifest.json"
    values = json.loads(manifest.read_text())
    for split in values["splits"]:
        for shard in split["shards"]:
            if shard["file"] == path.name:
                shard["sha256"], shard["bytes"] = _sha256(path.read_bytes()), path.stat().st_size
    manifest.write_text(json.dumps(seal_data_manifest(values)))


def seal_vocabulary(path: Path) -> None:
    """The manifest of a data set, with the fingerprint and size of its vocabulary."""
    manifest = path.parent / "manifest.json"
    values = json.loads(manifest.read_text())
    files = {each.name: each.read_bytes() for each in path.parent.glob("vocabulary.*")}
    with contextlib.suppress(DataDamagedError):
        tokenizer = load_tokenizer(values["tokenizer_kind"], files)
        values["tokenizer_sha256"] = tokenizer.fingerprint
        values["vocabulary_size"] = tokenizer.vocabulary_size
        manifest.write_text(json.dumps(seal_data_manifest(values)))


def seal_checkpoint(path: Path) -> None:
    """The manifest of a checkpoint and the checksums of its index, after a file has changed."""
    if path.suffix == ".index":
        seal_index(path)
    manifest = path.parent / "manifest.json"
    values = json.loads(manifest.read_text())
    entry = values["files"][path.name]
    entry["bytes"] = path.stat().st_size
    if "sha256" in entry:
        entry["sha256"] = _sha256(path.read_bytes())
    manifest.write_text(json.dumps(seal_checkpoint_manifest(values)))


def seal_index(path: Path) -> None:
    """The checksum of every block of an index, as far as the blocks can be found."""
    content = bytearray(path.read_bytes())
    with contextlib.suppress(IndexError, struct.error):
        place, handles = len(content) - 48, []
        for _ in range(4):
            number, place = _number(content, place)
            handles.append(number)
        blocks = [(handles[0], handles[1]), (handles[2], handles[3])]
        start, size = blocks[1]
        place = start
        while place < start + size - 8:
            sizes = []
            for _ in range(3):
                number, place = _number(content, place)
                sizes.append(number)
            value = place + sizes[1]
            first, after = _number(content, value)
            blocks.append((first, _number(content, after)[0]))
            place = value + sizes[2]
        for first, length in blocks:
            end = first + length + 1
            if first >= 0 and end + 4 <= len(content):
                content[end : end + 4] = struct.pack("<I", _masked(_crc32c(content[first:end])))
    path.write_bytes(content)


def seal_export(path: Path) -> None:
    """The list of checksums of an export."""
    folder = next(each for each in path.parents if (each / "SHA256SUMS").exists())
    if path.suffix == ".index":
        seal_index(path)
    files = [each for each in sorted(folder.rglob("*")) if each.is_file() and not each.is_symlink()]
    names = [each.relative_to(folder) for each in files if each.name != "SHA256SUMS"]
    lines = [f"{_sha256((folder / name).read_bytes())}  {name}\n" for name in names]
    (folder / "SHA256SUMS").write_text("".join(lines))


def _sealed(values: Any, field: str, hashed: Any) -> Any:
    if not isinstance(values, dict) or field not in values or not _is_hash(values[field]):
        return values
    rest = {name: value for name, value in values.items() if name != field}
    return rest | {field: hashed(rest)}


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64


def _canonical(values: Any) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _number(content: bytearray, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def _crc32c(content: bytearray) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
