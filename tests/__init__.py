"""Tests, in the folders of what they test. tests/README.md says how they are run and what they cost."""

import os

# Before NumPy is loaded: its threads spin where several processes share the cores, for systems of a few equations.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
