"""Small SentencePiece models, trained once for all tests."""

import functools
import random

from txl_tf.data.vocabulary_training import SentencePieceTraining

_CHOSEN = random.Random(0)
_SYLLABLES = ["gar", "den", "house", "keep", "er", "un", "seen", "for", "got", "ten", "the"]
_WORDS = ["".join(_CHOSEN.choices(_SYLLABLES, k=_CHOSEN.randrange(1, 4))) for _ in range(200)]
LINES = [" ".join(_CHOSEN.choices(_WORDS, k=9)) + "." for _ in range(400)]
TEXT = "\n".join(LINES).encode()


@functools.cache
def trained_sentence_piece(model_type):
    """The model of that type over a few English words."""
    training = SentencePieceTraining(vocabulary_size=320, model_type=model_type)
    return training.train_on([TEXT.decode()])
