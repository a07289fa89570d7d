"""Libraries for GPUs on a driver that only writes down what it is asked for."""
