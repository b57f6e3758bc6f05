"""Pallas kernels of Transformer-XL for TPUs, embedded in TensorFlow programs."""
