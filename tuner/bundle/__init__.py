"""Searches without a device at hand: candidates as machine code in a folder, with a runner that needs Python, NumPy and
NVIDIA's driver; what it measured comes back as records."""
