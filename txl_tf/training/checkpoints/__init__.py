"""Checkpoints of a run: their files, their folder, and saving in the background."""
