"""Reader of the vocabulary that the official code stores as a pickle.

`cache.pkl` is a pickle of a `Corpus`, or of its `Vocab`, by Python 2. Only this file has the ids of
the published models.
"""

import dataclasses
import mmap
import pickle
import struct
from pathlib import Path
from typing import Any, ClassVar

from txl_tf.errors import DataDamagedError, InputMissingError
from txl_tf.storage.files import make_folder, write_file
from txl_tf.storage.staging import require_absent

_MAX_BYTES = 16 * 2**30
# Errors that the unpickler raises for content that is not a pickle.
_DAMAGED = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError),
    *(RecursionError, TypeError, ValueError, struct.error, pickle.UnpicklingError),
)
_CORPUS = ("data_utils.Corpus", "__main__.Corpus")
_VOCABULARY = ("vocabulary.Vocab", "utils.vocabulary.Vocab", "data_utils.Vocab", "__main__.Vocab")
# Names in arrays of encoded text and in old classes.
_OTHERS = (
    *("__builtin__.object", "builtins.object", "_codecs.encode", "numpy.dtype", "numpy.ndarray"),
    *("numpy._core.multiarray._reconstruct", "numpy._core.multiarray.scalar"),
    *("numpy.core.multiarray._reconstruct", "numpy.core.multiarray.scalar"),
)

# Opcodes that no vocabulary needs: sets, extensions, persistent ids, buffers.
_REFUSED = b"".join(
    (
        *(pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.NEWOBJ_EX),
        *(pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.PERSID, pickle.BINPERSID),
        *(pickle.BYTEARRAY8, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
    )
)


class InertObject:
    """Stand-in for an object of a pickle; it stores the state and does nothing."""

    kind = ""
    state: Any = None

    def __new__(cls, *arguments: Any) -> "InertObject":
        return object.__new__(cls)

    def __init__(self, *arguments: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _DataUnpickler(pickle._Unpickler):
    """Unpickler with an allow-list of names, which it does not import.

    Unlike the C unpickler it does not allocate a memo as large as an index in the file. Dict keys
    are text and numbers, because hashing a deep tuple overflows the stack.
    """

    stack: list[Any]
    append: Any
    pop_mark: Any

    def find_class(self, module: str, name: str) -> Any:
        full_name = f"{module}.{name}"
        if full_name in ("collections.OrderedDict", "collections.Counter"):
            return _dict_of
        if full_name in ("copy_reg._reconstructor", "copyreg._reconstructor"):
            return _reconstructed
        if full_name in (*_CORPUS, *_VOCABULARY, *_OTHERS):
            return type("InertObject", (InertObject,), {"kind": full_name})
        raise ValueError(f"it asks for {full_name[:100]!r}, which is not data")

    def _load_dict(self) -> None:
        items = self.pop_mark()
        self.append(_pairs_of(items))

    def _load_items(self) -> None:
        items = self.pop_mark()
        self.stack[-1].update(_pairs_of(items))

    def _load_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.stack[-1].update(_dict_of([(key, value)]))

    def _refuse(self) -> None:
        raise ValueError("it uses an operation that is not for data")

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        **dict.fromkeys(_REFUSED, _refuse),
        pickle.DICT[0]: _load_dict,
        pickle.SETITEM[0]: _load_item,
        pickle.SETITEMS[0]: _load_items,
    }


def _reconstructed(kind: Any, *arguments: Any) -> InertObject:
    if not (isinstance(kind, type) and issubclass(kind, InertObject)):
        raise ValueError("it makes an object of something that is not a class")
    return kind()


def _pairs_of(items: list[Any]) -> dict[Any, Any]:
    return _dict_of(zip(items[::2], items[1::2], strict=True))


def _dict_of(content: Any = ()) -> dict[Any, Any]:
    pairs = list(content.items() if isinstance(content, dict) else content)
    if any(type(key) not in (str, bytes, int) for key, _ in pairs):
        raise ValueError("the keys of a dict are not text or numbers")
    return dict(pairs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Python2Vocabulary:
    """Vocabulary of a published model."""

    symbols: tuple[str, ...]
    """Symbol of every id."""
    cutoffs: tuple[int, ...] = ()
    """First ids of the clusters of rare symbols, as in `ModelConfig.cutoffs`."""
    dataset: str | None = None
    """The official code's name of the corpus."""


def read_python2_vocabulary(path: str | Path) -> Python2Vocabulary:
    """Reads the vocabulary of a `cache.pkl`.

    Stand-ins replace an allow-list of names and all others are refused, so no module is imported
    and no function of the pickle is called.

    Args:
        path: path of the pickle.

    Raises:
        InputMissingError: If there is no such file.
        DataDamagedError: If it is damaged, has no vocabulary, or requests anything but data.
    """
    path = Path(path)
    if not path.is_file():
        raise InputMissingError("There is no such file.", where=str(path))
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES} bytes")
        with path.open("rb") as file:
            # Reads from a map are limited to the file's size, whatever length the pickle declares.
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            root = _DataUnpickler(content, encoding="bytes").load()
        return _vocabulary(root)
    except _DAMAGED as error:
        raise DataDamagedError(
            f"The pickle is not read: {error}.",
            where=str(path),
            remedy="Only what the official code wrote of a corpus or vocabulary is read.",
        ) from error


def write_symbols(vocabulary: Python2Vocabulary, path: str | Path) -> Path:
    """Writes the symbols as UTF-8 text, one per line, in the order of their ids.

    Args:
        vocabulary: `Python2Vocabulary`.
        path: path of the file to create.

    Raises:
        OutputExistsError: If the file exists; it is left alone.
        DataDamagedError: If a symbol contains a line break.
    """
    path = Path(path)
    for number, symbol in enumerate(vocabulary.symbols):
        if "\n" in symbol or "\r" in symbol:
            raise DataDamagedError(
                f"Symbol {number} has a line break in it: {symbol[:50]!r}.",
                where=str(path),
                remedy="Such a vocabulary is not text with one symbol per line.",
            )
    require_absent(str(path))
    text = "".join(f"{symbol}\n" for symbol in vocabulary.symbols)
    make_folder(str(path.parent))
    write_file(str(path), text.encode("utf-8"))
    return path


def _vocabulary(root: Any) -> Python2Vocabulary:
    if not isinstance(root, InertObject) or root.kind not in (*_CORPUS, *_VOCABULARY):
        raise ValueError("it holds neither a Corpus nor a Vocab")
    corpus = _attributes(root) if root.kind in _CORPUS else {"vocab": root}
    idx2sym = _attributes(corpus.get("vocab")).get("idx2sym")
    if not isinstance(idx2sym, list) or not idx2sym:
        raise ValueError("its vocabulary has no list `idx2sym` of symbols")
    symbols = _decoded(idx2sym)
    if len(set(symbols)) != len(symbols):
        raise ValueError("two ids have the same symbol")
    dataset = corpus.get("dataset")
    return Python2Vocabulary(
        symbols=tuple(symbols),
        cutoffs=_cutoffs(corpus.get("cutoffs"), len(symbols)),
        dataset=None if dataset is None else _decoded([dataset])[0],
    )


def _attributes(value: Any) -> dict[str, Any]:
    if not isinstance(value, InertObject) or not isinstance(value.state, dict):
        raise ValueError("its vocabulary is not an object with attributes")
    attributes = {}
    for name, attribute in value.state.items():
        attributes[name.decode("latin-1") if isinstance(name, bytes) else name] = attribute
    return attributes


def _decoded(values: list[Any]) -> list[str]:
    """Decodes Python 2 text: as UTF-8 if all of it is valid, else as Latin-1."""
    if not all(isinstance(value, str | bytes) for value in values):
        raise ValueError("a symbol is not a text")
    try:
        encoded = [each if isinstance(each, bytes) else each.encode("utf-8") for each in values]
        return [each.decode("utf-8") for each in encoded]
    except UnicodeDecodeError:
        return [each.decode("latin-1") if isinstance(each, bytes) else each for each in values]


def _cutoffs(values: Any, num_symbols: int) -> tuple[int, ...]:
    """Checks official cutoffs; removes the leading 0 and the final vocabulary size."""
    if not values:
        return ()
    if not isinstance(values, list) or not all(type(each) is int for each in values):
        raise ValueError("its cutoffs are not a list of numbers")
    if values[0] != 0 or values[-1] != num_symbols or sorted(set(values)) != values:
        raise ValueError("its cutoffs do not ascend from 0 to the number of symbols")
    return tuple(values[1:-1])
