"""The operator ``torch.ops.shapewright.grouped_mm``: rows by the matrix of their group, with the group of each row.

    grouped_mm(Tensor x, Tensor w, Tensor ends, Tensor group) -> Tensor

``x`` [rows, k] has its rows in the order of their groups, ``w`` is [groups, k, n], ``ends`` [groups] says behind which
row each group ends, ``group`` [rows] of int32 says the same by row; rows behind the last group are 0. It stands for the
operators of mixtures of experts (``shapewright.models.experts``), and computes as they do where no library takes it.
"""

from __future__ import annotations

import torch

from shapewright.torch.op import library


def _by_group(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    out, first = x.new_zeros(x.shape[0], w.shape[2]), 0
    for number, end in enumerate(ends.tolist()):
        if end > first:
            torch.mm(x[first:end], w[number], out=out[first:end])
        first = end
    return out


def _fake(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], w.shape[2])


library.define("grouped_mm(Tensor x, Tensor w, Tensor ends, Tensor group) -> Tensor")
library.impl("grouped_mm", _by_group, "CompositeExplicitAutograd")
torch.library.register_fake("shapewright::grouped_mm", _fake, lib=library)

grouped_mm = torch.ops.shapewright.grouped_mm
