"""What every way to make a vocabulary from a text has in common."""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping

from txl_tf.data.document import Document
from txl_tf.data.parallel.ordered_workers import OrderedWorkers
from txl_tf.data.tokenizer import Tokenizer
from txl_tf.data.vocabularies.encoded_texts import EncodedTexts
from txl_tf.data.vocabularies.token_texts import TokenTexts
from txl_tf.errors import DataDamagedError

Progress = Callable[[str, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyTraining(abc.ABC):
    """Makes the vocabulary of a text and then its tokens; the text is read twice at most.

    Args:
        counted_splits: tuple of str. The splits that the vocabulary is of; what
            is not in the text is not looked for. Defaults to `("train",)`.
    """

    counted_splits: tuple[str, ...] = ("train",)

    @abc.abstractmethod
    def train(
        self,
        splits: Mapping[str, Iterable[Document]],
        workers: OrderedWorkers,
        progress: Progress,
    ) -> Tokenizer:
        """Makes the vocabulary.

        Args:
            splits: dict of split name to documents, which can be iterated more
                than once.
            workers: `OrderedWorkers`. Who does the work.
            progress: function, called with the name of the split and the bytes
                of text read since last.

        Returns:
            The tokenizer.

        Raises:
            DataDamagedError: If the text does not give a vocabulary.
        """

    def tokenize(
        self,
        splits: Mapping[str, Iterable[Document]],
        workers: OrderedWorkers,
        scratch_folder: str,
        progress: Progress,
    ) -> TokenTexts:
        """Makes the vocabulary and turns the text into tokens.

        Args:
            splits: dict of split name to documents, as for `train`.
            workers: `OrderedWorkers`. Who does the work.
            scratch_folder: str. A local folder for what does not fit into
                memory.
            progress: function, as for `train`.

        Returns:
            The `TokenTexts`.

        Raises:
            DataDamagedError: If the text does not give a vocabulary.
        """
        return EncodedTexts(splits, self.train(splits, workers, progress), workers)

    def counted(self, splits: Mapping[str, Iterable[Document]]) -> list[str]:
        """The names of the counted splits there are, in the order of the text."""
        return [name for name in splits if name in self.counted_splits]


def no_vocabulary(error: ValueError) -> DataDamagedError:
    """The error about a text that does not give the vocabulary that was asked for."""
    what = f"The text gives no such vocabulary: {' '.join(str(error).split())[:300]}"
    return DataDamagedError(what, remedy="Give more text, or ask for another vocabulary.")
