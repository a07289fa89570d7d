"""The problem to tune: dims, workloads, targets, search tasks, job files and the catalogue of operators."""
