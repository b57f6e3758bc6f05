"""One file per configuration file."""
