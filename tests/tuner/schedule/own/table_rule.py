"""A rule of one's own in one file: a product whose rows are read through a table, ``x[index[m], k]``."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.program.language.expr import Axis, Binary, Read
from tuner.program.language.workload import Workload
from tuner.schedule.product.atoms import only_fma
from tuner.schedule.product.context import EmitContext
from tuner.schedule.product.operands.matrix import MatrixColumns, MatrixResult, MatrixRows
from tuner.schedule.product.product import Place, Product
from tuner.schedule.product.rule import ProductRule
from tuner.schedule.rule import NoMatch
from tuner.schedule.tir import I, TirExpr, i64, tirx


@dataclass(frozen=True)
class TableRows(MatrixRows):
    """Rows of a tensor, each found in the table ``index``; past the last one that one is read."""

    index: str

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        buffer, _ = super().row(context, row)
        number = tirx.Cast("int64", context.buffers[self.index][(row,)])
        return buffer, (I.Bind(tirx.max(tirx.min(number, buffer.shape[0] - i64(1)), i64(0))),)


class TableProduct(ProductRule[Product]):
    """``out[m, n] = sum(k) x[index[m], k] * w[n, k]``, or ``w[k, n]``; w constant."""

    name = "table_product"

    def find(self, workload: Workload) -> Product | NoMatch:
        stage, *others = workload.program.stages
        match stage.body:
            case Binary(
                operator="*",
                left=Read(tensor=x, indices=(Read(tensor=index, indices=(Axis(name=m),)), Axis(name=k))),
                right=Read(tensor=w, indices=(Axis(name=outer), Axis(name=inner))),
            ) if stage.axes[:1] == (m,) and stage.reduce_axes == (k,) and not others and w in workload.constants:
                n = stage.axes[-1]
                if sorted((outer, inner)) != sorted((n, k)) or len(stage.axes) != 2:
                    return NoMatch(f"{w} is read at other axes than {n} and {k}")
                return Product(
                    axes={"m": m, "n": n, "k": k},
                    left=TableRows(x, workload.tensors[x].dtype, index),
                    right=MatrixColumns(w, workload.tensors[w].dtype, lies_along_n=inner == n, is_packed_ahead=True),
                    result=MatrixResult(
                        stage.tensor, m, n, dtype=workload.tensors[stage.tensor].dtype, computed=stage.tensor
                    ),
                    dynamic=frozenset("m" if workload.sizes[m].constant is None else ""),
                    depth=workload.sizes[k].constant,
                    atoms=only_fma,
                )
        return NoMatch("it is no product of rows that are read through a table with a constant")
