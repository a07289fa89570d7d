"""Tests, in the folders of what they test. tests/README.md says how they are run and what they cost."""

import os

# Before NumPy is loaded: its threads spin where several processes share the cores, for systems of a few equations.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# PyTorch's compiler tries each instruction set in a process that imports PyTorch, and starts one to compile in: seconds
# for every process that compiles anything, for a handful of small graphs.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
