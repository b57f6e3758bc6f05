"""Attention layers, their tensors, and the operators that compute attention by device."""
