"""Kernels by the names that measurements of GPUs have them by, in blocks: one workload at one shape."""
