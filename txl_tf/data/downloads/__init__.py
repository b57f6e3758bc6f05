"""Published files: what they must be, and how they are fetched."""
