"""How generation picks the next token."""
