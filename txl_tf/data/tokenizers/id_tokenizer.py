"""Tokenizer of token ids that are written as numbers or labels."""

from collections.abc import Mapping, Sequence
from typing import Self

from txl_tf.data.tokenizers.tokenizer import OPTIONS_FILE
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.storage.strict_json import json_file, parse_json


class IdTokenizer(WordTokenizer):
    """Tokenizer of text that consists of token ids, each written as a number or a label.

    White space separates the numbers and labels. Decoded text has the label of an id, with `_` in
    the place of white space. It has the number if the label is missing or empty, is a number, or
    is also the label of an earlier id. So `encode(decode(ids)) == ids` for any labels.

    Args:
        vocabulary_size: int. Number of ids.
        labels: sequence of str. Labels in the order of their ids. Defaults to none.

    Example:
    ```python
    tokenizer = txl_tf.data.IdTokenizer(3, ["Bar", "Note On 60"])
    assert tokenizer.decode([0, 1, 2]) == "Bar Note_On_60 2"
    assert list(tokenizer.encode("Bar 1 2")) == [0, 1, 2]
    ```
    """

    kind = "ids"
    reads_lines = False

    def __init__(self, vocabulary_size: int, labels: Sequence[str] = ()) -> None:
        if not len(labels) <= vocabulary_size or vocabulary_size < 1:
            raise ValueError(
                "`vocabulary_size` must be positive, and at least the number of labels. "
                f"Received: vocabulary_size={vocabulary_size} and {len(labels)} labels"
            )
        self.labels = list(labels)
        words = list(map(str, range(vocabulary_size)))
        ids = {word: number for number, word in enumerate(words)}
        for number, label in enumerate("_".join(each.split()) for each in labels):
            if label and ids.setdefault(label, number) == number:
                words[number] = label
        super().__init__(words, WordRule())
        self.ids = {word.encode(): number for word, number in ids.items()}

    @classmethod
    def from_vocabulary_files(cls, files: Mapping[str, bytes]) -> Self:
        return cls(**parse_json(files[OPTIONS_FILE]))

    @property
    def vocabulary_files(self) -> Mapping[str, bytes]:
        """Name and content of the file with the number of ids and their labels."""
        values = {"vocabulary_size": self.vocabulary_size, "labels": self.labels}
        return {OPTIONS_FILE: json_file(values, indent=0)}
