"""One file per layer file."""
