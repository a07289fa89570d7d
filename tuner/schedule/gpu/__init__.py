"""Kernels for GPUs: Triton source from what the rules find in a program."""
