"""The catalogue of operators: what can be tuned, as data. ``reference`` computes the same with NumPy."""

from tuner.ops.catalogue import DENSE, EPILOGUES, MATMUL, OPS, Contraction, Epilogue, Op, Operand, op_named

__all__ = ["DENSE", "EPILOGUES", "MATMUL", "OPS", "Contraction", "Epilogue", "Op", "Operand", "op_named"]
