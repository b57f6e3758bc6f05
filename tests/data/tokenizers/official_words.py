"""The official rule of words, restated: lines of a text file, `str.split`, `Counter`."""

import collections
import io


def official_lines(text, *, lower_case=False, add_eos=False, add_double_eos=False):
    """The symbols of every line of a file with this content."""
    with io.TextIOWrapper(io.BytesIO(text), encoding="utf-8") as file:
        for line in file:
            line = line.strip()
            symbols = (line.lower() if lower_case else line).split()
            if add_double_eos:
                symbols = ["<S>", *symbols, "<S>"]
            elif add_eos:
                symbols = [*symbols, "<eos>"]
            yield symbols


def official_vocabulary(text, *, lower_case=False, special=(), min_freq=0, vocabulary_size=None):
    """Symbols in the order of their ids; counts leave out the line symbols."""
    counter = collections.Counter()
    for symbols in official_lines(text, lower_case=lower_case):
        counter.update(symbols)
    symbols = list(special)
    for symbol, count in counter.most_common():
        if count < min_freq:
            break
        if symbol not in symbols:
            symbols.append(symbol)
    return symbols[:vocabulary_size]
