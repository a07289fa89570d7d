"""Models: those that are timed whole, and architectures whose coverage is told; how they are called."""
