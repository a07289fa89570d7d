"""An emitted module: Triton functions, and how the host launches them one after the other.

Its text stands alone: it imports Triton, and PyTorch where it is called, since builders have none. ``run`` takes a
tensor for each operand in call order, then the symbols. The same facts are there as data, for compilers that make
cubins without a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuner.program.language.workload import Workload
from tuner.schedule.gpu.functions import PRELUDE
from tuner.schedule.gpu.writer import Writer, dim_text

HEADER = '''"""{title}"""

import triton
import triton.language as tl
{imports}
'''
ROUNDED = """def rounded_to_tf32(tensor):
    import torch

    bits = (tensor.view(torch.int32) + 0x1000) & -8192
    return torch.where(tensor == tensor, bits.view(torch.float32), tensor)"""
DESCRIPTORS = "from triton.tools.tensor_descriptor import TensorDescriptor\n"


@dataclass(frozen=True)
class Scratch:
    """Memory of a call that is no operand: ``size`` in elements, as the host computes it."""

    name: str
    dtype: str
    size: str


@dataclass(frozen=True)
class Descriptor:
    """A matrix that tiles are brought of by the hardware: the operand, its shape as the host computes it, a tile."""

    name: str
    tensor: str
    dtype: str
    shape: tuple[str, str]
    block: tuple[int, int]
    is_rounded: bool = False
    """Whether the hardware rounds elements to TF32 on the way."""


@dataclass(frozen=True)
class Pack:
    """How a constant is laid out before all calls: its dims as ``shape``, those in another ``order``, then a matrix."""

    tensor: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    matrix: tuple[int, int]


@dataclass(frozen=True)
class Function:
    """A Triton function. ``pointers``: the tensors and scratches that it takes, then descriptors, then symbols."""

    name: str
    pointers: tuple[str, ...]
    descriptors: tuple[Descriptor, ...]
    symbols: tuple[str, ...]
    body: tuple[str, ...]

    @property
    def parameters(self) -> list[str]:
        names = [f"p_{name}" for name in self.pointers] + [each.name for each in self.descriptors]
        return names + [f"s_{symbol}" for symbol in self.symbols]

    @property
    def text(self) -> str:
        return "\n".join(["@triton.jit", f"def {self.name}({', '.join(self.parameters)}):", *self.body, "", ""])


@dataclass(frozen=True)
class Launch:
    """``grid``: programs, as the host computes them."""

    function: Function
    grid: tuple[str, ...]
    num_warps: int = 4
    num_stages: int = 1


@dataclass(frozen=True)
class Module:
    """What computes a workload on a GPU."""

    workload: Workload
    launches: tuple[Launch, ...]
    scratch: tuple[Scratch, ...] = ()
    about: Mapping[str, object] = field(default_factory=dict)
    packs: tuple[Pack, ...] = ()
    is_wide: bool = False
    """Whether offsets have 64 bits; else no tensor may have more elements than 32 bits count."""

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtype of everything that a function may take a pointer of."""
        tensors = {name: tensor.dtype for name, tensor in self.workload.tensors.items()}
        return tensors | {each.name: each.dtype for each in self.scratch}

    @property
    def text(self) -> str:
        """The module as a Python file."""
        functions = list(dict.fromkeys(launch.function for launch in self.launches))
        imports = DESCRIPTORS if any(function.descriptors for function in functions) else ""
        title = f"{self.workload}: {' '.join(f'{name}={value}' for name, value in self.about.items())}"
        parts = [HEADER.format(title=title, imports=imports), PRELUDE, "\n", *(each.text + "\n" for each in functions)]
        return "".join(parts) + self._run()

    def _run(self) -> str:
        operands = [tensor.name for tensor in self.workload.operands]
        symbols = [f"s_{symbol}" for symbol in self.workload.symbols]
        writer = Writer()
        if self.scratch:
            writer.line("import torch")
            writer.line(f"device = p_{operands[0]}.device")
        for each in self.scratch:
            writer.line(f"p_{each.name} = torch.empty(max({each.size}, 1), dtype=torch.{each.dtype}, device=device)")
        for launch in self.launches:
            names = [f"p_{name}" for name in launch.function.pointers]
            for matrix in launch.function.descriptors:
                rows, columns = matrix.shape
                # Triton has no such descriptors.
                base = f"rounded_to_tf32(p_{matrix.tensor})" if matrix.is_rounded else f"p_{matrix.tensor}"
                names.append(f"TensorDescriptor({base}, [{rows}, {columns}], [{columns}, 1], {list(matrix.block)})")
            names += [f"s_{symbol}" for symbol in launch.function.symbols]
            grid = f"({', '.join(launch.grid)},)"
            writer.line(f"grid = {grid}")
            with writer.block("if min(grid) > 0:"):
                options = f"num_warps={launch.num_warps}, num_stages={launch.num_stages}"
                writer.line(f"{launch.function.name}[grid]({', '.join([*names, options])})")
        lines = ["def pack(name, tensor):"]
        for pack in self.packs:
            moved = f"tensor.reshape({pack.shape}).permute({pack.order}).reshape({pack.matrix}).contiguous()"
            lines += [f'    if name == "{pack.tensor}":', f"        return {moved}"]
        if any(each.is_rounded for launch in self.launches for each in launch.function.descriptors):
            lines = [*ROUNDED.splitlines(), "", "", *lines]
        packing = "\n".join([*lines, "    return tensor", "", "", ""])
        head = f"def run({', '.join([*(f'p_{name}' for name in operands), *symbols])}):"
        cdiv = "def cdiv(a, b):\n    return -(-a // b)\n\n\n"
        return cdiv + packing + "\n".join([head, *writer.lines, ""])


def host_size(workload: Workload, names: Sequence[str]) -> str:
    """The product of the extents of some axes, as the host computes it."""
    symbols = {name: f"s_{name}" for name in workload.symbols}
    sizes = [f"max({dim_text(workload.sizes[name], symbols, is_host=True)}, 0)" for name in names]
    return " * ".join(sizes) or "1"
