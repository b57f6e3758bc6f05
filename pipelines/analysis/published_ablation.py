"""What Dai et al. (2019) publish in Tables 5 and 8: words of WikiText-103, 128 M parameters."""

from typing import NamedTuple


class PublishedRow(NamedTuple):
    """A row of the tables.

    Attributes:
        initial: float. Perplexity at the attention length of training.
        best: float. Perplexity at the best length.
        attention_length: int. The shortest length that reaches it.
    """

    initial: float
    best: float
    attention_length: int

    def describe(self) -> str:
        """The row in short."""
        return f"{self.initial:.2f}, {self.best:.2f} at {self.attention_length}"


PUBLISHED_ROWS = {
    (True, "transformer_xl", "all"): PublishedRow(27.02, 26.77, 500),
    (True, "shaw", "all"): PublishedRow(27.94, 27.94, 256),
    (True, "transformer_xl", "last_half"): PublishedRow(28.69, 28.33, 460),
    (False, "transformer_xl", "all"): PublishedRow(29.59, 29.02, 260),
    (False, "transformer_xl", "last_half"): PublishedRow(30.10, 30.10, 120),
    (False, "shaw", "all"): PublishedRow(29.75, 29.75, 120),
    (False, "shaw", "last_half"): PublishedRow(30.50, 30.50, 120),
    (False, "sinusoidal", "last_half"): PublishedRow(30.97, 30.97, 120),
    (False, "learned", "last_half"): PublishedRow(31.16, 31.16, 120),
}
"""Table 5, by recurrence, encoding and loss."""

PUBLISHED_AT_EQUAL_MEMORY = {
    (False, "transformer_xl", "all"): PublishedRow(28.43, 27.98, 400),
    (False, "transformer_xl", "last_half"): PublishedRow(28.83, 28.83, 120),
}
"""Table 8: the rows whose segments are longer because they have no memory."""
