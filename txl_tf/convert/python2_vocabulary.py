"""Reader of the vocabularies that the official code and Hugging Face store as pickles.

Python 2 wrote `cache.pkl`, a pickle of a `Corpus` or of its `Vocab`. Only this file has the ids of
the published models. `vocab.pkl` is a dict with the attributes of a `TransfoXLTokenizer`.
"""

import dataclasses
import functools
import mmap
import pickle
from pathlib import Path
from typing import Any, ClassVar

from txl_tf.errors import DataDamagedError, InputMissingError, errors_as

_CORPUS = ("data_utils.Corpus", "__main__.Corpus")
_VOCABULARY = ("vocabulary.Vocab", "utils.vocabulary.Vocab", "data_utils.Vocab", "__main__.Vocab")
# Names that pickles of arrays of encoded text and of old classes contain.
_OTHERS = (
    "__builtin__.object",
    "builtins.object",
    "_codecs.encode",
    "numpy.dtype",
    "numpy.ndarray",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
)
# Names in the attributes of Hugging Face's tokenizer. Their objects are not used.
_OF_TOKENIZER = (
    "re._compile",
    "tokenizers.AddedToken",
    "transformers.tokenization_utils.Trie",
    "transformers.tokenization_utils_base.AddedToken",
    *(f"sacremoses.tokenize.Moses{name}" for name in ("Tokenizer", "Detokenizer")),
    "sacremoses.normalize.MosesPunctNormalizer",
)


class InertObject:
    """Object that stands for an object of a pickle: it stores the state and does nothing else.

    A subclass for each name has it as its `kind`.
    """

    kind = ""
    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state


# Operations of pickle that no vocabulary needs.
_REFUSED = pickle.EXT1 + pickle.EXT2 + pickle.EXT4 + pickle.BYTEARRAY8


def _load_tuple(unpickler: Any, count: int | None = None) -> None:
    """Makes a list where a pickle has a tuple, so that no nested tuple is hashed."""
    items = unpickler.pop_mark() if count is None else unpickler.stack[-count:]
    if count is not None:
        del unpickler.stack[-count:]
    unpickler.append(list(items))


def _refuse(unpickler: Any) -> None:
    raise ValueError("it uses an operation that is not for data")


class _DataUnpickler(pickle._Unpickler):
    """Unpickler with an allow-list of names, which it does not import.

    The base class is the one written in Python. Its memory stays within the size of the file.
    """

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.TUPLE[0]: _load_tuple,
        pickle.TUPLE1[0]: functools.partial(_load_tuple, count=1),
        pickle.TUPLE2[0]: functools.partial(_load_tuple, count=2),
        pickle.TUPLE3[0]: functools.partial(_load_tuple, count=3),
        **dict.fromkeys(_REFUSED, _refuse),
    }

    def find_class(self, module: str, name: str) -> Any:
        full_name = f"{module}.{name}"
        if full_name in ("collections.OrderedDict", "collections.Counter"):
            return dict
        if full_name in ("copy_reg._reconstructor", "copyreg._reconstructor"):
            return _reconstructed
        if full_name in (*_CORPUS, *_VOCABULARY, *_OTHERS, *_OF_TOKENIZER):
            return type("InertObject", (InertObject,), {"kind": full_name})
        raise ValueError(f"it asks for {full_name[:100]!r}, which is not data")


def _reconstructed(kind: Any, *arguments: Any) -> InertObject:
    if not (isinstance(kind, type) and issubclass(kind, InertObject)):
        raise ValueError("it makes an object of something that is not a class")
    return kind()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Python2Vocabulary:
    """Vocabulary of another implementation."""

    symbols: tuple[str, ...]
    """Symbol of every id."""
    dataset: str | None = None
    """Name of the corpus in the official code, or `None` if the pickle names none."""


def read_python2_vocabulary(path: str | Path) -> Python2Vocabulary:
    """Reads the vocabulary of a `cache.pkl` or `vocab.pkl`.

    Stand-ins replace the names of an allow-list, and all other names are refused. So no module is
    imported and no function of the pickle is called.

    Args:
        path: path of the pickle.

    Raises:
        InputMissingError: If there is no such file.
        DataDamagedError: If the pickle is damaged, has no vocabulary, or requests more than data.
    """
    path = Path(path)
    if not path.is_file():
        raise InputMissingError("There is no such file.", where=str(path), remedy="Give a pickle.")
    # If the content is no pickle, the unpickler may raise an error of any type.
    with errors_as(
        DataDamagedError,
        Exception,
        "The pickle is refused",
        str(path),
        "Give cache.pkl of the official code, or vocab.pkl of Hugging Face.",
    ):
        with path.open("rb") as file:
            # A memory map limits each read to the size of the file.
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            root = _DataUnpickler(content, encoding="bytes").load()
        return _vocabulary(root)


def _vocabulary(root: Any) -> Python2Vocabulary:
    corpus: dict[str, Any] = {}
    if isinstance(root, dict):
        idx2sym = root.get("idx2sym")
    elif isinstance(root, InertObject) and root.kind in (*_CORPUS, *_VOCABULARY):
        corpus = _attributes(root) if root.kind in _CORPUS else {"vocab": root}
        idx2sym = _attributes(corpus.get("vocab")).get("idx2sym")
    else:
        raise ValueError("it holds neither a Corpus, a Vocab nor a tokenizer")
    if not isinstance(idx2sym, list) or not idx2sym:
        raise ValueError("its vocabulary has no list `idx2sym` of symbols")
    symbols = _decoded(idx2sym)
    if len(set(symbols)) != len(symbols):
        raise ValueError("two ids have the same symbol")
    dataset = corpus.get("dataset")
    return Python2Vocabulary(
        symbols=tuple(symbols), dataset=None if dataset is None else _decoded([dataset])[0]
    )


def _attributes(value: Any) -> dict[str, Any]:
    if not isinstance(value, InertObject) or not isinstance(value.state, dict):
        raise ValueError("its vocabulary is not an object with attributes")
    return {
        name.decode("latin-1") if isinstance(name, bytes) else name: attribute
        for name, attribute in value.state.items()
    }


def _decoded(values: list[Any]) -> list[str]:
    """Decodes Python 2 text: as UTF-8 if every text is valid, else as Latin-1."""
    if not all(isinstance(value, str | bytes) for value in values):
        raise ValueError("a symbol is not a text")
    try:
        encoded = [each if isinstance(each, bytes) else each.encode("utf-8") for each in values]
        return [each.decode("utf-8") for each in encoded]
    except UnicodeDecodeError:
        return [each.decode("latin-1") if isinstance(each, bytes) else each for each in values]
