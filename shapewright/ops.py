"""The operators of the catalogue, by name: ``sw.ops.dense``. Their ``doc`` gives shapes and the call's operands."""

from tuner.program.ops import BATCH_MATMUL_NN as batch_matmul_nn  # noqa: N811 - lower case as functions of other libraries are
from tuner.program.ops import BATCH_MATMUL_NT as batch_matmul_nt  # noqa: N811
from tuner.program.ops import DENSE as dense  # noqa: N811
from tuner.program.ops import MATMUL as matmul  # noqa: N811

__all__ = ["batch_matmul_nn", "batch_matmul_nt", "dense", "matmul"]
