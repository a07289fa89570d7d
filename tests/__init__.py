"""Tests, in the folders of what they test. tests/README.md says how they are run and what they cost."""

import os

# Before NumPy is loaded: its threads spin where several processes share the cores, for systems of a few equations.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Threads of TVM that wait for work sleep, and take no core from another process.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
# PyTorch's compiler tries each instruction set in a process that imports PyTorch, and starts one to compile in: seconds
# for every process that compiles anything, for a handful of small graphs.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
