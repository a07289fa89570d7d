"""Kernels for GPUs measured where there is one: bundles that need nothing of this repository there."""
