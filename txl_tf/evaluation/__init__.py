"""Exact evaluation: every token once, sums first, one division at the end."""
