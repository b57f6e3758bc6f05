"""Compilation of training and evaluation steps for TPUs, on machines without one."""
