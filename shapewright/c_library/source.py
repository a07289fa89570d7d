"""The C source and the header of one library: a plain function for its program, and one to pack each constant."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files

from shapewright.c_library.layouts import packs
from tuner.errors import InvalidInput
from tuner.library.dispatcher import Dispatcher
from tuner.library.package import packed_layouts
from tuner.program.job.range_text import format_ranges
from tuner.program.language.dims import MAX_DIM, DimExpr, Quotient
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.workload import JsonObject, Tensor, Workload
from tuner.program.target import tiles
from tuner.program.target.cpu import FROM_LINUX
from tuner.schedule.layout import Layout, PackLayout
from tuner.schedule.strassen import SUMS

NAME = re.compile("[a-z_][a-z0-9_]{0,63}", re.IGNORECASE)
C_TYPES = {
    "float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t", "int8": "int8_t",
    "uint8": "uint8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t", "bool": "uint8_t",
}  # fmt: skip
"""Floats of 16 bits are passed as their bits."""
DLPACK = {"i": 0, "u": 1, "f": 2, "b": 6}
BFLOAT = 4
KEYWORDS = frozenset((
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern",
    "float", "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed",
    "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while", "and",
    "bool", "catch", "class", "delete", "false", "friend", "namespace", "new", "not", "operator", "or", "private",
    "protected", "public", "template", "this", "throw", "true", "try", "typename", "using", "virtual", "xor",
    "alignas", "alignof", "and_eq", "asm", "bitand", "bitor", "char8_t", "char16_t", "char32_t", "co_await",
    "co_return", "co_yield", "compl", "concept", "const_cast", "consteval", "constexpr", "constinit", "decltype",
    "dynamic_cast", "explicit", "export", "mutable", "noexcept", "not_eq", "nullptr", "or_eq", "reinterpret_cast",
    "requires", "static_assert", "static_cast", "thread_local", "typeid", "typeof", "typeof_unqual", "wchar_t",
    "xor_eq", "errno", "stderr", "stdin", "stdout", "packed",
))  # fmt: skip
"""Names that no parameter may have, in C or in C++: keywords, macros of the standard headers, and one that is taken."""
OWN = "sw_"
"""What the names begin with that the source has besides."""


@dataclass(frozen=True)
class CSource:
    """The texts of a library's C form. ``name`` is what its functions are called: ``shapewright_NAME``."""

    name: str
    manifest: JsonObject
    dispatcher: Dispatcher

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise InvalidInput("--name", f"{self.name!r} is no name of C", "letters, digits and _, at most 64")

    @property
    def workload(self) -> Workload:
        return self.dispatcher.task.workload

    @property
    def function(self) -> str:
        return f"shapewright_{self.name}"

    @cached_property
    def layouts(self) -> Mapping[str, Layout]:
        return packed_layouts(self.manifest, self.workload)

    # -- names ------------------------------------------------------------------------------------------------------
    @cached_property
    def operands(self) -> Mapping[str, str]:
        """The parameter's name of each tensor, by the tensor's name."""
        taken = {*KEYWORDS, *(each.name for each in self.workload.operands)}
        return {each.name: self._allowed(each.name, taken) for each in self.workload.operands}

    @staticmethod
    def _allowed(name: str, taken: set[str]) -> str:
        """The name of an operand, or another one that is not ``taken``, and is from now on."""
        if name not in KEYWORDS and not name.startswith(OWN):
            return name
        other = f"{name}_" if name in KEYWORDS else f"of_{name}"
        while other in taken:
            other += "_"
        taken.add(other)
        return other

    @cached_property
    def symbols(self) -> Mapping[str, str]:
        taken, found = {*self.operands.values(), *KEYWORDS, *self.workload.symbols}, dict[str, str]()
        for name in self.workload.symbols:
            found[name] = name
            if name in self.operands.values():
                found[name] = f"{name}_size"
                while found[name] in taken:
                    found[name] += "_"
        return found

    def text(self, size: DimExpr | int) -> str:
        """A size as an expression of C over the parameters."""
        if isinstance(size, int):
            return f"INT64_C({size})"
        products = []
        for monomial, coefficient in size.terms:
            factors = [self._atom(atom) for atom in monomial]
            if coefficient != 1 or not factors:
                factors.append(f"INT64_C({coefficient})")
            products.append(" * ".join(factors))
        return " + ".join(products) or "INT64_C(0)"

    def _atom(self, atom: str | Quotient) -> str:
        if isinstance(atom, str):
            return self.symbols[atom]
        function = "sw_div" if atom.operator == "//" else "sw_mod"
        return f"{function}({self.text(atom.numerator)}, {atom.divisor})"

    # -- the header -------------------------------------------------------------------------------------------------
    def header(self) -> str:
        guard = f"SHAPEWRIGHT_{self.name.upper()}_H_"
        return _template("header.h.in").format(
            guard=guard,
            function=self.function,
            program="\n".join(f" *     {stage}" for stage in str(self.workload.program).splitlines()),
            target=self.manifest["target_fingerprint"],
            ranges=format_ranges(self.dispatcher.bounds),
            threads=self.manifest["threads"],
            digest=self.manifest["digest"],
            operands="\n".join(f" *   {self._described(each)}" for each in self.workload.operands),
            packing="".join(self._packing_declared(each) for each in self._packed),
            parameters=self.parameters(),
        )

    def parameters(self) -> str:
        operands = (self._parameter(each) for each in self.workload.operands)
        return ", ".join([*operands, *(f"int64_t {name}" for name in self.symbols.values())])

    def _parameter(self, tensor: Tensor) -> str:
        if tensor.name in self.layouts:
            return f"const void *{self.operands[tensor.name]}"
        const = "" if tensor in self.workload.outputs else "const "
        return f"{const}{C_TYPES[tensor.dtype]} *{self.operands[tensor.name]}"

    def _described(self, tensor: Tensor) -> str:
        shape = ", ".join(map(str, tensor.dims))
        packed = f", packed by {self.function}_pack_{tensor.name}" if tensor.name in self.layouts else ""
        bits = " (its bits)" if tensor.dtype in ("float16", "bfloat16") else ""
        return f"{self.operands[tensor.name]}: {tensor.dtype}{bits} [{shape}]{packed}"

    def _packing_declared(self, tensor: Tensor) -> str:
        return _template("packing.h.in").format(**self._packing_fields(tensor))

    def _packing_fields(self, tensor: Tensor) -> dict[str, str]:
        """Fields that the declaration and the definition of a packing function have in common."""
        sizes = self._sizes_of(tensor)
        return {
            "function": self.function, "name": tensor.name, "type": C_TYPES[tensor.dtype],
            "parameter": self.operands[tensor.name], "sizes": sizes or "void", "more": f", {sizes}" if sizes else "",
        }  # fmt: skip

    def _sizes_of(self, tensor: Tensor) -> str:
        return ", ".join(f"int64_t {self.symbols[name]}" for name in self.symbols_of(tensor))

    def symbols_of(self, tensor: Tensor) -> list[str]:
        """The symbols that its dims depend on, which are what packing it takes."""
        used = {name for dim in tensor.dims for name in dim.variables}
        return [name for name in self.workload.symbols if name in used]

    @property
    def _packed(self) -> list[Tensor]:
        return [each for each in self.workload.inputs if each.name in self.layouts]

    def _packers(self) -> dict[str, int | str]:
        """The functions of the runtime that pack constants, as macros."""
        layouts = [self.layouts[each.name] for each in self._packed]
        panels = [layout for layout in layouts if isinstance(layout, PackLayout)]
        filters, blocks = sum(bool(each.filter) for each in panels), sum(each.blocks for each in panels)
        sums = ", ".join(f"{{{', '.join(map(str, signs))}}}" for signs in SUMS)
        return {
            "SW_PACKS": int(len(layouts) > filters + blocks), "SW_FILTERS": int(filters > 0),
            "SW_BLOCKS": int(blocks > 0), "SW_SUMS": f"{{{sums}}}",
        }  # fmt: skip

    # -- the source -------------------------------------------------------------------------------------------------
    def source(self, kernels: bytes) -> str:
        """``kernels``: the object file that it is linked with, which says what of a runtime they call."""
        workload = self.workload
        dims = max(1, *(len(self._shape(each)) for each in workload.operands))
        defines = {
            "SW_THREADS": self.manifest["threads"], "SW_OPERANDS": len(workload.operands), "SW_DIMS": dims,
            "SW_MAX_SIZE": f"INT64_C({MAX_DIM})", **self._packers(),
            "SW_WORKSPACES": int(b"__TVMBackendAllocWorkspace" in kernels),
            "SW_PARALLEL": int(b"__TVMBackendParallelLaunch" in kernels),
        }  # fmt: skip
        spelled = {ours: linux for linux, ours in FROM_LINUX.items()}
        features = self.manifest["target"]["hardware"]["features"]
        if any(map(tiles.is_of_tiles, features)):
            defines["SW_ASKS_FOR_TILES"] = ", ".join(f"{each}L" for each in tiles.PERMISSION)
        return "\n".join(
            [
                f"// Generated by Shapewright for library {self.manifest['digest']}.",
                "#define _GNU_SOURCE",
                f'#include "shapewright/{self.name}.h"',
                *(f"#include <{name}.h>" for name in ("pthread", "sched", "stdio", "stdlib", "string", "unistd")),
                *(f"#define {name} {value}" for name, value in defines.items()),
                "static const char *const sw_features[] = {",
                *(f'  "{spelled.get(name, name)}",' for name in features),
                "  0};\n",
                files(__package__).joinpath("runtime.c").read_text(),
                *(self._packing(each) for each in self._packed),
                self._call(),
                f"const char *{self.function}_error(void) {{ return sw_error; }}\n",
            ]
        )

    def _shape(self, tensor: Tensor) -> tuple[DimExpr | int, ...]:
        return self.layouts[tensor.name].packed_shape(tensor.dims) if tensor.name in self.layouts else tensor.dims

    def _call(self) -> str:
        lines = [f"int {self.function}({self.parameters()}) {{", "  int sw_status = sw_begin();"]
        lines += self._checks(self.workload.symbols)
        lines.append("  if (sw_status) return sw_status;")
        rows = []
        for tensor in self.workload.operands:
            shape = [f"sw_size({self.text(dim)})" for dim in self._shape(tensor)]
            lines.append(f"  const int64_t sw_shape_{tensor.name}[] = {{{', '.join(shape) or '0'}}};")
            name, dtype = self.operands[tensor.name], DTYPES[tensor.dtype]
            code = BFLOAT if tensor.dtype == "bfloat16" else DLPACK[dtype.kind]
            rows.append(f'    {{{name}, sw_shape_{tensor.name}, {len(shape)}, {{{code}, {dtype.bits}, 1}}, "{name}"}},')
        return "\n".join(
            [*lines, "  const sw_operand sw_operands[] = {", *rows, "  };", "  return sw_call(sw_operands);", "}\n"]
        )

    def _checks(self, symbols: Iterable[str]) -> list[str]:
        names = [self.symbols[name] for name in symbols]
        return [f'  if (!sw_status) sw_status = sw_check_size({name}, "{name}");' for name in names]

    def _packing(self, tensor: Tensor) -> str:
        layout, dtype = self.layouts[tensor.name], DTYPES[tensor.dtype]
        size = math.prod(map(DimExpr.of, layout.packed_shape(tensor.dims)), start=DimExpr.of(dtype.bytes))
        sizes = ", ".join(self.symbols[name] for name in self.symbols_of(tensor))
        return _template("packing.c.in").format(
            **self._packing_fields(tensor),
            passed=sizes,
            checks="\n".join(self._checks(self.symbols_of(tensor))),
            bytes=self.text(size),
            elements=self.text(math.prod(tensor.dims, start=DimExpr.of(1))),
            written=packs(layout, tensor, self.operands[tensor.name], self.text),
        )


def _template(name: str) -> str:
    return files(__package__).joinpath(name).read_text()
