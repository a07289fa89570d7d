"""Libraries for GPUs: kernels as machine code in a shared object, and what launches them on the host."""
