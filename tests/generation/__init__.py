"""One file per module of the package, and one per property of several."""
