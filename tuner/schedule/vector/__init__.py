"""Vector code in TensorIR that every rule shares: loads and stores, arithmetic, elementary functions.

``dtypes``      what an element is in memory and in a register, and casts
``memory``      loads and stores masked at ragged ends, permutations and sums of lanes, prefetches, workspaces
``arithmetic``  operators whose meaning survives TVM's simplifier
``elementary``  exp, log, tanh, erf, sigmoid, sin, cos of float32, with stated errors
``functions``   all scalar functions and reducers of the program notation by name, for every dtype
``expression``  a program's expressions

Every module but this one imports TVM.
"""
