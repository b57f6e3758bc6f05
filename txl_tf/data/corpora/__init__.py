"""Sources of text, each giving the documents of its splits in a fixed order."""
