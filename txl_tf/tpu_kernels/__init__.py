"""Kernels of Transformer-XL for TPUs, written in Pallas and carried into TensorFlow's programs."""
