"""A training run in a folder: its data, its loop, its figures, and the weights it begins from."""
