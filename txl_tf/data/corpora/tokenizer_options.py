"""How a corpus is turned into tokens."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerOptions:
    """What decides the tokens and the vocabulary of a published corpus.

    A line is split at white space into words, or into its characters or bytes;
    lines follow each other without a token for the line end, unless `add_eos`
    or `add_double_eos` says otherwise. The vocabulary has the special tokens
    first and then what was counted, by count.

    Args:
        kind: str. `"bytes"`, `"characters"` or `"words"`.
        special_tokens: tuple of str. Tokens that have the first ids.
        eos_token: optional str. The token for the end of a line.
        unknown_token: optional str. The token for words outside of the
            vocabulary. `None` where there can be none.
        add_eos: bool. Whether `eos_token` follows every line, an empty one too.
        add_double_eos: bool. Whether `eos_token` comes before and after every
            line.
        lower_case: bool. Whether words are made lower case.
        counted_splits: tuple of str. The splits that the vocabulary is of.
        min_frequency: int. What occurs less often is not in the vocabulary.
        max_size: optional int. Largest size of the vocabulary.
    """

    kind: str
    special_tokens: tuple[str, ...] = ()
    eos_token: str | None = None
    unknown_token: str | None = None
    add_eos: bool = False
    add_double_eos: bool = False
    lower_case: bool = False
    counted_splits: tuple[str, ...] = ("train", "valid", "test")
    min_frequency: int = 1
    max_size: int | None = None
