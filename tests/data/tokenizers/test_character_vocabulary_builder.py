import collections
import random

import pytest

from tests.data.tokenizers.hostile_texts import CHARACTERS, hostile_texts, random_pieces
from txl_tf.data.tokenizers.character_vocabulary_builder import CharacterVocabularyBuilder


def text_with_ties(seed):
    characters = list(CHARACTERS * 3)
    random.Random(seed).shuffle(characters)
    return "".join(characters).encode()


@pytest.mark.parametrize("options", [{}, {"min_frequency": 4}, {"max_size": 9}], ids=str)
def test_the_order_is_the_official_one_ties_included(options):
    for text in [text_with_ties(0), text_with_ties(1), b"\n".join(hostile_texts(100))]:
        builder = CharacterVocabularyBuilder()
        builder.count(text)
        counted = collections.Counter(text.decode()).most_common(options.get("max_size"))
        kept = [each for each, count in counted if count >= options.get("min_frequency", 0)]
        if kept:
            assert builder.build(**options).characters == kept
        else:
            with pytest.raises(ValueError, match="at least one"):
                builder.build(**options)


def test_parts_merged_in_order_give_the_vocabulary_of_one_pass():
    chosen = random.Random(0)
    for seed in range(8):
        text = text_with_ties(seed)
        whole, merged = CharacterVocabularyBuilder(), CharacterVocabularyBuilder()
        whole.count(text)
        for piece in random_pieces(text, chosen):
            part = CharacterVocabularyBuilder()
            part.count(piece)
            merged.merge(part.characters, part.counts)
        assert merged.characters == whole.characters
        assert merged.counts.tolist() == whole.counts.tolist()
