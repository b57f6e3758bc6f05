"""One file per model file."""
