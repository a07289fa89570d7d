"""Searches without a device at hand: candidates as machine code in a folder, with a runner that needs Python, NumPy and
NVIDIA's driver; what it measured comes back as records."""

CHOICES, OTHERS = 24, 8
"""Kernels of theory: its set, the set that it would choose without that, and so on; and kernels unlike them."""
