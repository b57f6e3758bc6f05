"""Preparation on all cores: text in chunks, worker processes, results in order."""
