"""The catalogue of operators: what can be tuned, as data. ``reference`` computes the same with NumPy."""

from tuner.program.catalogue import (
    BATCH_MATMUL_NN,
    BATCH_MATMUL_NT,
    DENSE,
    EPILOGUES,
    MATMUL,
    OPS,
    Contraction,
    Epilogue,
    Op,
    Operand,
    op_named,
)

__all__ = [
    "BATCH_MATMUL_NN",
    "BATCH_MATMUL_NT",
    "DENSE",
    "EPILOGUES",
    "MATMUL",
    "OPS",
    "Contraction",
    "Epilogue",
    "Op",
    "Operand",
    "op_named",
]
