import json

import pytest

from txl_tf.data.text_sources.json_lines_documents import MAX_LINE_BYTES, JsonLinesDocuments
from txl_tf.errors import DataDamagedError

TEXTS = ["one\n", "zwölf\u2028 \U0001f600", "", "back\\slash \x00", " x " * 1_500_000]


@pytest.mark.parametrize("ensure_ascii", [False, True])
def test_texts_come_out_as_they_went_in(tmp_path, read_documents, ensure_ascii):
    path = tmp_path / "texts.jsonl"
    lines = [json.dumps({"id": 1, "body": text}, ensure_ascii=ensure_ascii) for text in TEXTS]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\n".join(lines).encode())
    documents = JsonLinesDocuments([str(path)], "body")
    expected = [text.encode() for text in TEXTS if text]
    assert read_documents(documents) == expected
    assert read_documents(documents) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": ', "not JSON"),
        (b'["text"]', "not a JSON object"),
        (b'{"body": "x", "id": 1}', "no field 'text', but: body, id"),
        (b'{"text": 3}', "must be a string, not int"),
        (b'{"text": null}', "must be a string, not NoneType"),
        (b'{"text": "\\ud800"}', "lone surrogate at character 0"),
        (b'{"text": "\xff"}', "not UTF-8, from its byte 10"),
        (b"[" * 100_000, "not JSON"),
        ('{"text": "x"}'.encode("utf-16"), "not UTF-8"),
    ],
)
def test_a_line_without_a_text_is_named(tmp_path, read_documents, line, message):
    path = tmp_path / "texts.jsonl"
    path.write_bytes(b'{"text": "good"}\n\n' + line + b"\n")
    with pytest.raises(DataDamagedError, match=message) as caught:
        read_documents(JsonLinesDocuments([str(path)]))
    assert f"{path}, line 3, byte 18" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 3


def test_a_line_that_is_too_long_for_the_memory_is_named(tmp_path, read_documents):
    path = tmp_path / "texts.jsonl"
    with open(path, "wb") as file:
        file.write(b'{"text": "good"}\n{"text": "')
        file.write(b"x" * (MAX_LINE_BYTES + 2_000_000) + b'"}\n')
    with pytest.raises(DataDamagedError, match=f"longer than {MAX_LINE_BYTES}") as caught:
        read_documents(JsonLinesDocuments([str(path)]))
    assert f"{path}, line 2, byte 17" in str(caught.value)
