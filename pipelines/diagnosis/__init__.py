"""Checks of `txl doctor`; only the probe imports TensorFlow."""
