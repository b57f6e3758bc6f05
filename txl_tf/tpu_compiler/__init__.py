"""The training and evaluation step, compiled for TPUs on a machine that has none."""
