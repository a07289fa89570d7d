"""Vector code in TensorIR that every rule shares: loads and stores, arithmetic, elementary functions.

``dtypes``      what an element is in memory and in a register, and casts
``memory``      loads and stores masked at ragged ends, sums across lanes, prefetches, workspaces
``arithmetic``  operators whose meaning survives TVM's simplifier
``elementary``  exp, log, tanh, erf, sigmoid, sin, cos of float32, with stated errors
``functions``   all scalar functions of the program notation by name, for every dtype
``reducers``    reducers of the program notation: how two values combine, and what nothing gives
``expression``  a program's expressions

Every module but this one imports TVM.
"""
