"""Tokenizers, the counting of their vocabularies, and their in-graph twins."""
