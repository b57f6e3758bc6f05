"""Losses that a training step minimizes, and the reader of a task's examples."""
