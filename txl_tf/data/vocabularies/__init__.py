"""How the vocabulary of a data set is made, and its text turned into tokens."""
