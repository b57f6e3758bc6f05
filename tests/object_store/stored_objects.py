"""The objects of the test store, and the answers of Google's JSON interface about them."""

import dataclasses
import itertools
import json
import threading
import time


@dataclasses.dataclass(frozen=True)
class StoredObject:
    """One generation of an object."""

    content: bytes
    generation: int
    created: float

    def description(self, name: str) -> dict[str, str]:
        updated = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(self.created))
        return {
            "name": name,
            "size": str(len(self.content)),
            "generation": str(self.generation),
            "updated": f"{updated}.000Z",
        }


class StoredObjects:
    """Objects by bucket and name. An object is whole or not there; names have no folders.

    Reading sees every write at once. A listing may lag: it then leaves out what
    was made and still names what was removed within the last `lag_seconds`.
    """

    def __init__(self) -> None:
        self.lag_seconds = 0.0
        self._lock = threading.RLock()
        self._objects: dict[tuple[str, str], StoredObject] = {}
        self._removed: dict[tuple[str, str], tuple[float, float]] = {}
        self._generations = itertools.count(1)
        self._uploads: dict[str, tuple[str, str, bytearray]] = {}

    def get(self, bucket: str, name: str) -> StoredObject | None:
        with self._lock:
            return self._objects.get((bucket, name))

    def put(self, bucket: str, name: str, content: bytes) -> dict[str, str]:
        with self._lock:
            stored = StoredObject(bytes(content), next(self._generations), time.time())
            self._objects[bucket, name] = stored
            return stored.description(name)

    def delete(self, bucket: str, name: str) -> bool:
        with self._lock:
            stored = self._objects.pop((bucket, name), None)
            if stored is None:
                return False
            self._removed[bucket, name] = stored.created, time.time()
            return True

    def list_page(
        self, bucket: str, prefix: str, delimiter: str, page_token: str, page_size: int
    ) -> dict[str, object]:
        """A page of the objects and of the parts before the delimiter, both in order."""
        entries: dict[str, bool] = {}
        for name in self._listed(bucket, prefix):
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                entries[prefix + rest.partition(delimiter)[0] + delimiter] = True
            else:
                entries[name] = False
        names = sorted(name for name in entries if name > page_token)
        page: dict[str, object] = {
            "items": [{"name": name} for name in names[:page_size] if not entries[name]],
            "prefixes": [name for name in names[:page_size] if entries[name]],
        }
        if len(names) > page_size:
            page["nextPageToken"] = names[page_size - 1]
        return page

    def begin_upload(self, bucket: str, name: str) -> str:
        with self._lock:
            upload = f"upload-{next(self._generations)}"
            self._uploads[upload] = bucket, name, bytearray()
            return upload

    def extend_upload(
        self, upload: str, first_byte: int | None, part: bytes, total: int
    ) -> dict[str, str] | int | None:
        """Takes a part. The description once all is there, else the bytes that are.

        `None` where there is no such upload, or the part leaves a gap.
        """
        with self._lock:
            if upload not in self._uploads:
                return None
            bucket, name, content = self._uploads[upload]
            if first_byte is not None:
                if first_byte > len(content):
                    return None
                content[first_byte:] = part
            if len(content) < total:
                return len(content)
            return self.put(bucket, name, content[:total])

    def names(self, bucket: str) -> list[str]:
        with self._lock:
            return sorted(name for place, name in self._objects if place == bucket)

    def _listed(self, bucket: str, prefix: str) -> list[str]:
        with self._lock:
            horizon = time.time() - self.lag_seconds
            there = {key for key, stored in self._objects.items() if stored.created <= horizon} | {
                key
                for key, (created, removed) in self._removed.items()
                if created <= horizon < removed
            }
            return [name for place, name in there if place == bucket and name.startswith(prefix)]


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()
