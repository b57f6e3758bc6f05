"""Writes pickles by hand, operation by operation, as Python 2 wrote them."""

import struct


def text(value):
    """Returns the operation for a `str` of Python 2, which is bytes."""
    data = value if isinstance(value, bytes) else value.encode("utf-8")
    if len(data) < 256:
        return b"U" + bytes([len(data)]) + data
    return b"T" + struct.pack("<i", len(data)) + data


def integer(value):
    return b"J" + struct.pack("<i", value)


def sequence(items):
    return b"](" + b"".join(items) + b"e"


def mapping(entries):
    return b"}(" + b"".join(text(key) + value for key, value in entries.items()) + b"u"


def name(module, attribute):
    return f"c{module}\n{attribute}\n".encode()


def instance(module, attribute, entries):
    return name(module, attribute) + b")\x81" + mapping(entries) + b"b"


def ordered_dict(entries):
    pairs = [b"](" + text(key) + value + b"e" for key, value in entries.items()]
    return name("collections", "OrderedDict") + sequence(pairs) + b"\x85R"


def counter(entries):
    return name("collections", "Counter") + mapping(entries) + b"\x85R"


def array(num_numbers):
    """Returns the operations for an array of int64, as NumPy of that time wrote it."""
    unmade = name("numpy", "ndarray") + b"K\x00\x85U\x01b\x87R"
    dtype = name("numpy", "dtype") + b"U\x02i8K\x00K\x01\x87R"
    dtype += b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    data = text(bytes(8 * num_numbers))
    state = b"(K\x01" + integer(num_numbers) + b"\x85" + dtype + b"\x89" + data + b"t"
    return name("numpy.core.multiarray", "_reconstruct") + unmade + state + b"b"


def vocabulary(symbols, module="vocabulary"):
    ids = {symbol: integer(index) for index, symbol in enumerate(symbols)}
    entries = {
        "counter": counter(dict.fromkeys(symbols, b"K\x02")),
        "special": sequence([]),
        "min_freq": b"K\x00",
        "max_size": b"N",
        "lower_case": b"\x88",
        "delimiter": b"N",
        "vocab_file": b"N",
        "idx2sym": sequence([text(symbol) for symbol in symbols]),
        "sym2idx": ordered_dict(ids),
    }
    return instance(module, "Vocab", entries)


def corpus(symbols, cutoffs=(), dataset="wt103", num_numbers=3, **more):
    entries = {
        "dataset": text(dataset),
        "vocab": vocabulary(symbols),
        "train": array(num_numbers),
        "valid": array(2),
        "test": array(2),
        "cutoffs": sequence([integer(cutoff) for cutoff in cutoffs]),
        **more,
    }
    return b"\x80\x02" + instance("data_utils", "Corpus", entries) + b"."
