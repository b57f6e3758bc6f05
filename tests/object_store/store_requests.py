"""One request of Google's JSON interface: what is asked, and the answer."""

import dataclasses
import json
import re
import urllib.parse

from tests.object_store.stored_objects import StoredObjects, as_json

_DOWNLOAD_HOST = "storage.googleapis.com"
_UPLOAD_URL = "https://www.googleapis.com/upload/storage/v1/b"
_OBJECTS = re.compile(
    r"(?P<upload>/upload)?/storage/v1/b/(?P<bucket>[^/]+)(/o(/(?P<name>[^/]+))?)?"
)
_REWRITE = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/(?:rewriteTo|copyTo)/b/([^/]+)/o/([^/]+)")
_COMPOSE = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/compose")


@dataclasses.dataclass
class StoreRequest:
    """A request, with the target as it was sent: names are quoted in it."""

    method: str
    host: str
    target: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def readable(self) -> str:
        """Host and path with names as they are, for rules and counts."""
        return f"{self.host}{urllib.parse.unquote(self.target)}"

    def query(self, name: str) -> str:
        values = urllib.parse.parse_qs(self.target.partition("?")[2], keep_blank_values=True)
        return values.get(name, [""])[0]


@dataclasses.dataclass
class StoreAnswer:
    """Status, body and headers of an answer."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = dataclasses.field(default_factory=dict)


def answer(request: StoreRequest, objects: StoredObjects) -> StoreAnswer:
    """Carries a request out."""
    if request.host == _DOWNLOAD_HOST and request.method in ("GET", "HEAD"):
        bucket, _, name = request.path.lstrip("/").partition("/")
        return _download(request, objects, bucket, urllib.parse.unquote(name))
    if found := _REWRITE.fullmatch(request.path):
        bucket, name, to_bucket, to_name = map(urllib.parse.unquote, found.groups())
        stored = objects.get(bucket, name)
        if stored is None:
            return _missing()
        resource = objects.put(to_bucket, to_name, stored.content)
        return StoreAnswer(200, as_json({"done": True, "resource": resource}))
    if found := _COMPOSE.fullmatch(request.path):
        return _compose(request, objects, *map(urllib.parse.unquote, found.groups()))
    found = _OBJECTS.fullmatch(request.path)
    if found is None:
        return StoreAnswer(400, f"not understood: {request.method} {request.readable}".encode())
    bucket = urllib.parse.unquote(found["bucket"])
    if found["upload"]:
        return _upload(request, objects, bucket)
    if found["name"] is None:
        if not request.path.endswith("/o"):
            return StoreAnswer(200, as_json({"name": bucket, "location": "TEST"}))
        page = objects.list_page(
            bucket,
            request.query("prefix"),
            request.query("delimiter"),
            request.query("pageToken"),
            min(int(request.query("maxResults") or 1000), 1000),
        )
        return StoreAnswer(200, as_json(page))
    return _one_object(request, objects, bucket, urllib.parse.unquote(found["name"]))


def _one_object(
    request: StoreRequest, objects: StoredObjects, bucket: str, name: str
) -> StoreAnswer:
    if request.method == "DELETE":
        return StoreAnswer(204) if objects.delete(bucket, name) else _missing()
    if request.query("alt") == "media":
        return _download(request, objects, bucket, name)
    stored = objects.get(bucket, name)
    return _missing() if stored is None else StoreAnswer(200, as_json(stored.description(name)))


def _download(request: StoreRequest, objects: StoredObjects, bucket: str, name: str) -> StoreAnswer:
    stored = objects.get(bucket, name)
    if stored is None:
        return _missing()
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
    if asked is None:
        return StoreAnswer(200, stored.content)
    first = int(asked[1])
    last = min(int(asked[2] or len(stored.content)), len(stored.content) - 1)
    if first >= len(stored.content):
        return StoreAnswer(416)
    headers = {"Content-Range": f"bytes {first}-{last}/{len(stored.content)}"}
    return StoreAnswer(206, stored.content[first : last + 1], headers)


def _upload(request: StoreRequest, objects: StoredObjects, bucket: str) -> StoreAnswer:
    upload = request.query("upload_id")
    if not upload and request.query("uploadType") == "resumable":
        upload = objects.begin_upload(bucket, request.query("name"))
        url = f"{_UPLOAD_URL}/{bucket}/o?uploadType=resumable&upload_id={upload}"
        return StoreAnswer(200, b"", {"Location": url})
    if not upload:
        name = request.query("name")
        if request.query("ifGenerationMatch") == "0" and objects.get(bucket, name) is not None:
            return StoreAnswer(412, b"it is there")
        return StoreAnswer(200, as_json(objects.put(bucket, name, request.body)))
    content_range = request.headers.get("content-range", "")
    asked = re.fullmatch(r"bytes (?:\*|(\d+)-\d+)/(\d+)", content_range)
    if asked is None:
        first, total = 0, len(request.body)
    else:
        first, total = (None if asked[1] is None else int(asked[1])), int(asked[2])
    result = objects.extend_upload(upload, first, request.body, total)
    if result is None:
        return _missing()
    if isinstance(result, int):
        headers = {"Range": f"bytes=0-{result - 1}"} if result else {}
        return StoreAnswer(308, b"", headers)
    return StoreAnswer(200, as_json(result))


def _compose(request: StoreRequest, objects: StoredObjects, bucket: str, name: str) -> StoreAnswer:
    parts = [
        objects.get(bucket, part["name"]) for part in json.loads(request.body)["sourceObjects"]
    ]
    if None in parts:
        return _missing()
    return StoreAnswer(
        200, as_json(objects.put(bucket, name, b"".join(part.content for part in parts)))
    )


def _missing() -> StoreAnswer:
    return StoreAnswer(404, b"not found")
