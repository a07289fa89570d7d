"""What a candidate may use of the machine: memory, files, processes, system calls."""
