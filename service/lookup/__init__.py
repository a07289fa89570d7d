"""The best kernel for a shape, one question or a thousand, with the workload's key or without."""
