"""Libraries of workloads: which one is served, all that there are, and the names that were given to them."""
