"""Exact evaluation: each token counts once, and totals are summed before one division."""
