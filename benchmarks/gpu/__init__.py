"""GPUs: bundles of a job's candidates, and libraries beside PyTorch's own ways."""
