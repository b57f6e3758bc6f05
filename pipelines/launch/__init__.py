"""Files that `txl launch` fills in, and the program of the other hosts of a slice."""
