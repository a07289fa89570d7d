"""What is asked: dims, workloads, targets, search tasks, job files and the catalogue of operators."""
