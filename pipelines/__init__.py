"""The jobs of the `txl` command, one module each."""
