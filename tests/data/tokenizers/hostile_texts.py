"""Texts that tokenizers get wrong."""

import random

import numpy as np

from txl_tf.data.text import document_pieces, map_pieces

# White space of every kind, line ends, combining, wide, invisible and reserved characters.
CHARACTERS = (
    "aAbBzZ.,'\"#_ \t\n\r\0\x0b\x0c\x1c\x1d\x1e\x1f\x7f\x85\xa0\u1680\u2000\u2009\u200a\u200b"
    "\u2028\u2029\u202f\u205f\u2060\u3000\ufeff\ufffd\ufffe\ufdd0e\u0301\u00e9\u0130\u0131\u03a3\u03c3"
    "\u00df\ufb01\u2581\u202e\u200d\u65e5\u672c\U0001f600\U0001f468\U0001f3ff\U0010ffff\ue000"
)
SENTENCES = (
    "It was the best of times,   it was the worst of times.\n\n\n",
    "\u039f\u03a3 \u039f\u03a3\u03a3. <eos> <S> <unk> ## ##a [UNK] \u0141\u00f3d\u017a\r\n",
    "\r\r\n\n\r \n",
    "one line without an end",
    " \t leading and trailing \u2028\u00a0",
    "a\u2581b \u2581\u2581 c",
    "un\ufeffmarked",
    "x" * 3000 + " " + "\u65e5" * 1000,
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \u00e9 \ufb01",
    "",
)


def hostile_texts(count, seed=0):
    """As many texts as wanted: the sentences, and random strings, as bytes."""
    generator = random.Random(seed)
    texts = [text.encode() for text in SENTENCES]
    while len(texts) < count:
        length = generator.randrange(1, 40)
        text = "".join(generator.choices(CHARACTERS, k=length))
        # A byte order mark at the beginning would be dropped.
        texts.append(text.lstrip("\ufeff").encode())
    return texts[:count]


def encode_in_pieces(tokenizer, pieces):
    """The ids of a document that comes in pieces."""
    pieces = document_pieces(pieces)
    return np.concatenate(map_pieces(tokenizer.encode_piece, pieces))
