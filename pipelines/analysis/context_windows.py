"""The tokens that all models of a group are scored on, with what is before them.

Shape letters used in this module: N tokens, C context length.
"""

import numpy as np

from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.errors import UsageError


class ContextWindows:
    """Tokens drawn from a split, each with the longest context before it.

    What is before a token is the text of the split as it stands: it goes back
    beyond the beginning of the token's document.

    Args:
        dataset: `PreparedDataset`.
        split: str. Name of the split.
        longest: int. The longest context length; tokens with less before them
            are not drawn.
        num_tokens: int. Tokens to draw; all that there are, where there are
            fewer.
        seed: int. Decides which tokens are drawn.

    Attributes:
        positions: int array `(N,)`. Where in the split the tokens are, ascending.

    Raises:
        UsageError: If there is no such split, or no token with so long a
            context.
    """

    def __init__(
        self, dataset: PreparedDataset, split: str, longest: int, num_tokens: int, seed: int
    ) -> None:
        if split not in dataset.manifest.split_names:
            raise UsageError(
                f"There is no split {split} in this data set.",
                where=dataset.folder,
                remedy=f"There are: {', '.join(dataset.manifest.split_names)}.",
            )
        num_possible = dataset.num_tokens(split) - longest
        if num_possible <= 0:
            raise UsageError(
                f"The split {split} has no token with {longest} tokens before it.",
                where=dataset.folder,
                remedy="Shorten --context, or take another --split.",
            )
        drawn = np.random.default_rng(seed).choice(
            num_possible, min(num_tokens, num_possible), replace=False
        )
        self.positions = np.sort(drawn) + longest
        self._windows = np.stack(
            [
                dataset.read_tokens(split, position - longest, position + 1)
                for position in map(int, self.positions)
            ]
        )

    def of_length(self, context: int) -> np.ndarray:
        """The tokens with this much before each.

        Args:
            context: int. Context length `C`, at most the longest.

        Returns:
            Int array `(N, C + 1)`; the token itself is the last.
        """
        return self._windows[:, -(context + 1) :]
