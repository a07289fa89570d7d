"""What rules for programs that are no products share: reads, reductions, outputs, shares of threads."""
