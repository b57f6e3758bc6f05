"""Requests that were good before something was done to them.

All is drawn from one `random.Random`, so that a seed, or hypothesis, decides it.
"""

import json

from tests.serving.good_requests import good_body, good_message
from tests.serving.servers import MODEL_NAME

PREDICT = "/tensorflow.serving.PredictionService/Predict"
_PATH = f"/v1/models/{MODEL_NAME}:predict"
_MARK = "@@"
# As they stand in JSON; not all of them are JSON.
_TOKENS = [
    *("NaN", "Infinity", "-Infinity", "1e999", "-0", "-0.0", "1e-999", "01", "+1", ".5"),
    *("9" * 30, "9" * 5000, "-" + "9" * 400, "2147483648", "-2147483649", "256", "-1", "1.5"),
    *("9223372036854775808", "18446744073709551616", "true", "null", "[]", "{}", '""', "[[]]"),
    *('"\\ud800"', '"\\u0000"', '{"b64": "YQ=="}', '{"b64": "*"}', '{"b64": 3}'),
    *('{"b64": "YQ==", "b64": "YQ=="}', '"a"', "[1, [2]]", "3e38", "1e300", '"\\x"', "'a'"),
    *("[" * 33 + "]" * 33, "[" * 9 + "1" + "]" * 9, "[" * 100_000, '{"a":' * 500 + "1" + "}" * 500),
]
_HEADERS = [
    *("Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked", "Content-Length: 3"),
    *("Content-Length: -1", "Content-Length: 1e3", "Content-Length: 99999999999999999999"),
    *("Content_Length: 5", "Content-Encoding: gzip", "Expect: 100-continue", "Expect: a"),
    *(" folded", "no colon", ": empty", "A: b\rC: d", "A: b\nC: d", "A\x00: b", "A: " + "b" * 9000),
    *("Connection: Upgrade\r\nUpgrade: websocket", "Connection: keep-alive", "Host: a\r\nHost: b"),
]
_LINES = [
    *("GET {} HTTP/1.1", "POST {} HTTP/1.0", "POST {} HTTP/2.0", "PUT {} HTTP/1.1", "POST {}"),
    *("POST http://[ HTTP/1.1", "POST //{} HTTP/1.1", "post {} HTTP/1.1", "CONNECT a:1 HTTP/1.1"),
    *("POST {}/versions/" + "9" * 400 + " HTTP/1.1", "POST {}%00 HTTP/1.1", "POST {}?a HTTP/1.1"),
    *(
        "HEAD {} HTTP/1.1",
        "GET /v1/models/x/metadata HTTP/1.1",
        "POST " + "/a" * 9000 + " HTTP/1.1",
    ),
    *("OPTIONS * HTTP/1.1", "\x16\x03\x01", "PRI * HTTP/2.0\r\n\r\nSM"),
]


def good_rest(random):
    """The bytes of a good request, whose connection ends with it."""
    return _http(json.dumps(good_body(random)).encode())


def hostile_rest(random, body_of=good_body):
    """The bytes of a request over HTTP that something was done to."""
    body = body_of(random)
    for _ in range(random.randint(0, 2)):
        _change_value(random, body)
    text = json.dumps(body)
    text = text.replace(f'"{_MARK}', "").replace(f'{_MARK}"', "")
    for token in _TOKENS:
        text = text.replace(json.dumps(token)[1:-1], token)
    if random.random() < 0.1:
        text = text.replace('"lengths"', '"token_ids"').replace('"seed"', '"top_k"')
    content = text.encode("utf-8", "surrogatepass")
    if random.random() < 0.2:
        content = _changed_bytes(random, content)
    line, headers = f"POST {_PATH} HTTP/1.1", []
    if random.random() < 0.2:
        headers = [random.choice(_HEADERS)]
    if random.random() < 0.1:
        line = random.choice(_LINES).format(_PATH)
    message = _http(content, line, headers, random.choice([0] * 20 + [-1, 1, 100]))
    return _changed_bytes(random, message) if random.random() < 0.1 else message


def good_grpc(random):
    """The bytes of a good `PredictRequest`."""
    return good_message(random).SerializeToString(deterministic=True)


def hostile_grpc(random, message_of=good_message):
    """The bytes of a message that something was done to."""
    request = message_of(random)
    for _ in range(random.randint(0, 3)):
        name = random.choice(sorted(request.inputs))
        random.choice(_TENSOR_CHANGES)(random, request.inputs[name])
    if random.random() < 0.3:
        random.choice(_REQUEST_CHANGES)(random, request)
    content = request.SerializeToString()
    return _changed_bytes(random, content) if random.random() < 0.3 else content


def _http(content, line=f"POST {_PATH} HTTP/1.1", headers=(), more=0):
    length = f"Content-Length: {max(len(content) + more, 0)}"
    head = "\r\n".join([line, "Host: a", "Connection: close", *headers, length, "", ""])
    return head.encode("latin-1") + content


def _change_value(random, value):
    """Replaces, removes, doubles, wraps or renames something within JSON."""
    while isinstance(value, dict | list) and value:
        key = random.choice(sorted(value) if isinstance(value, dict) else range(len(value)))
        if isinstance(value[key], dict | list) and value[key] and random.random() < 0.7:
            value = value[key]
            continue
        kind = random.randrange(5)
        if kind == 0:
            del value[key]
        elif kind == 1:
            # Bodies of megabytes, not of gigabytes.
            most = 1000 if len(str(value[key])) < 2000 else 30
            value[key] = [value[key]] * random.choice([0, 1, 2, most])
        elif kind == 2 and isinstance(value, dict):
            value[random.choice(["", "inputs", "instances", "x" * 300, "é"])] = value.pop(key)
        elif kind == 3 and isinstance(value, list):
            value.insert(key, value[key])
        else:
            value[key] = f"{_MARK}{random.choice(_TOKENS)}{_MARK}"
        return


def _changed_bytes(random, content):
    """Flips, cuts, doubles or puts in bytes."""
    for _ in range(random.randint(1, 4)):
        start = random.randint(0, len(content))
        stop = min(start + random.choice([1, 1, 4, 64]), len(content))
        middle = random.choice(
            [b"", content[start:stop] * 2, bytes([random.randrange(256)]), bytes(stop - start)]
        )
        content = content[:start] + middle + (content[stop:] if random.random() < 0.9 else b"")
    return content


_SIZES = [0, 1, 2, 3, -1, 7, 1000, 1 << 20, 1 << 31, 1 << 40, (1 << 62), (1 << 63) - 1]
_FIELDS = ["int_val", "float_val", "int64_val", "half_val", "double_val", "bool_val", "uint32_val"]


def _set_size(random, tensor):
    if tensor.tensor_shape.dim:
        random.choice(tensor.tensor_shape.dim).size = random.choice(_SIZES)


def _broadcast(random, tensor):
    tensor.ClearField("tensor_content")
    for axis in tensor.tensor_shape.dim:
        axis.size = random.choice([1, 40_000, 1 << 31])


def _add_values(random, tensor):
    field = random.choice(_FIELDS)
    number = random.choice([0, 1, 255, 65_535])
    getattr(tensor, field).extend([bool(number) if field == "bool_val" else number] * 3)


_TENSOR_CHANGES = [
    _set_size,
    _broadcast,
    _add_values,
    lambda random, tensor: setattr(tensor, "dtype", random.choice([*range(24), 101, 9999])),
    lambda random, tensor: setattr(tensor, "version_number", random.choice([-1, 1])),
    lambda random, tensor: setattr(
        tensor, "tensor_content", bytes(random.choice([0, 1, 3, 4, 8, 4096]))
    ),
    lambda random, tensor: setattr(tensor.tensor_shape, "unknown_rank", True),
    lambda random, tensor: tensor.tensor_shape.dim.add(size=random.choice(_SIZES)),
    lambda random, tensor: [tensor.tensor_shape.dim.add(size=1) for _ in range(300)],
    lambda random, tensor: tensor.tensor_shape.dim.pop() if tensor.tensor_shape.dim else None,
    lambda random, tensor: tensor.ClearField("tensor_shape"),
    lambda random, tensor: tensor.ClearField("tensor_content"),
    lambda random, tensor: tensor.int_val.extend([-(1 << 31), (1 << 31) - 1]),
    lambda random, tensor: tensor.half_val.extend([-1, 1 << 20]),
    lambda random, tensor: tensor.string_val.extend([b"a" * random.choice([0, 1, 1000])] * 2),
    lambda random, tensor: tensor.resource_handle_val.add(container="a"),
    lambda random, tensor: tensor.variant_val.add(type_name="a"),
    lambda random, tensor: tensor.Clear(),
]
_REQUEST_CHANGES = [
    lambda random, request: setattr(request.model_spec, "name", "x" * random.choice([0, 1, 5000])),
    lambda random, request: setattr(request.model_spec, "signature_name", "x"),
    lambda random, request: setattr(request.model_spec, "version_label", "x"),
    lambda random, request: setattr(request.model_spec.version, "value", (1 << 63) - 1),
    lambda random, request: setattr(request.model_spec.version, "value", -1),
    lambda random, request: request.output_filter.append(random.choice(["", "x", "nll", "nll"])),
    lambda random, request: request.inputs["x" * 300].Clear(),
    lambda random, request: request.inputs.pop(random.choice(sorted(request.inputs))),
    lambda random, request: request.inputs.clear(),
]
