"""What is known about workloads: the best kernel for a shape, dispatchers, libraries."""
