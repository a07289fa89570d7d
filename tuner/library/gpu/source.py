"""The host part of a library for GPUs as C: the tables of its machine code, and a function for each kernel, which the
dispatcher calls with the operands' pointers, the symbols, and the number of the GPU.

A function computes grids and scratch memory as the module's ``run`` does, and launches what the module launches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files

from tuner.errors import ShapewrightError
from tuner.library.gpu.host import c_expression
from tuner.library.package import ALONE
from tuner.program.language.dtypes import DTYPES
from tuner.schedule.gpu.cubin import MAP_BYTES, SCRATCH_POINTERS, Cubin
from tuner.schedule.gpu.module import Descriptor, Launch, Module, Scratch
from tuner.schedule.gpu.writer import dim_text

INCLUDES = ("dlfcn", "pthread", "stdarg", "stdint", "stdio", "stdlib")
ALIGNMENT = 16
"""Of operands: what kernels were compiled for (``cubins.ALIGNED``), and what tensor maps ask for."""
SCRATCH_ALIGNMENT = 256
MAX_BYTES = 1 << 48
"""More scratch memory than any GPU has."""
MAX_NARROW = 2**31 - 1
"""Elements up to which offsets of 32 bits reach."""
AXES = 3
PARAMETERS = "void *self, const sw_any *arguments, int32_t count, sw_any *result"
"""Of a function that TVM FFI calls."""
RUNTIME = ("integers.c", "devices.c", "calls.c")
WARP = 32
TARGET = re.compile(r"sm_(\d+)(\d)([a-z]?)")


class BadCubins(ShapewrightError):
    """Machine code that is not that of a module."""


@dataclass(frozen=True)
class GpuKernel:
    """A module, and its functions as machine code: for each target those of all launches, in order."""

    module: Module
    cubins: Mapping[str, Sequence[Cubin]]

    @staticmethod
    def of(module: Module, cubins: Sequence[Cubin]) -> GpuKernel:
        """``cubins``: those of all launches in order, one target after the other. Raises BadCubins."""
        by_target: dict[str, list[Cubin]] = {}
        for cubin in cubins:
            by_target.setdefault(cubin.target, []).append(cubin)
        for target, own in by_target.items():
            if len(own) != len(module.launches):
                raise BadCubins(f"{len(own)} functions for {target}, the module launches {len(module.launches)}")
            for launch, cubin in zip(module.launches, own, strict=True):
                _check(launch, cubin)
        return GpuKernel(module, by_target)


def _check(launch: Launch, cubin: Cubin) -> None:
    """Raise BadCubins for code that takes other parameters than a launch passes."""
    function = launch.function
    if TARGET.fullmatch(cubin.target) is None:
        raise BadCubins(f"{cubin.name} is for {cubin.target!r}, which is no target like sm_90a")
    if cubin.num_warps != launch.num_warps:
        raise BadCubins(f"{cubin.name} has {cubin.num_warps} warps, the module launches {launch.num_warps}")
    if len(cubin.maps) != len(function.descriptors):
        problem = f"{cubin.name} for {cubin.target} takes {len(cubin.maps)} tensor maps"
        raise BadCubins(f"{problem}, the module has {len(function.descriptors)} descriptors: leave them out there")
    passed = [8] * len(function.pointers)
    for _ in function.descriptors:
        passed += [MAP_BYTES, 4, 4, 8, 8]
    passed += [4] * len(function.symbols) + [8] * SCRATCH_POINTERS
    if list(cubin.parameters) != passed:
        raise BadCubins(f"{cubin.name} takes parameters of {list(cubin.parameters)} bytes, a launch passes {passed}")


class GpuSource:
    """The C of a library of some kernels, for the same targets each. Raises BadCubins."""

    def __init__(self, kernels: Sequence[GpuKernel]) -> None:
        self.kernels = kernels
        self.targets = list(kernels[0].cubins)
        for kernel in kernels:
            if set(kernel.cubins) != set(self.targets):
                raise BadCubins(f"kernels of one library have code for the same targets, got {self.targets} and others")
        self._functions: dict[tuple[Cubin, ...], int] = {}
        """The number of each function, by its code for all targets."""
        self.binaries: dict[bytes, str] = {}
        """The file of each binary."""
        for kernel in kernels:
            for place in range(len(kernel.module.launches)):
                code = self._code(kernel, place)
                self._functions.setdefault(code, len(self._functions))
                for cubin in code:
                    self.binaries.setdefault(cubin.binary, f"{len(self.binaries)}.cubin")

    def _code(self, kernel: GpuKernel, place: int) -> tuple[Cubin, ...]:
        return tuple(kernel.cubins[target][place] for target in self.targets)

    def alone(self) -> str:
        """The C of a launcher that needs neither TVM's dispatcher nor TVM FFI: ALONE takes what ``text`` says, and
        gives the text of a problem, or NULL."""
        lines = [
            f'__attribute__((visibility("default"))) const char *{ALONE}(const sw_any *arguments, int32_t count) {{',
            "  sw_any result;",
            "  return launch(NULL, arguments, count, &result) ? sw_problem : NULL;",
            "}\n",
        ]
        return "\n".join([self.text("launch", is_alone=True), *lines])

    def text(self, name: str, *, is_alone: bool = False) -> str:
        """``name``: what the function is called that takes the operands' pointers, the symbols, the number of a kernel,
        and that of the GPU."""
        cubins = [cubin for code in self._functions for cubin in code]
        most = max(len(cubin.maps) for cubin in cubins)
        defines = {
            "SW_FUNCTIONS": len(self._functions), "SW_TARGETS": len(self.targets), "SW_BOXES": max(most, 1),
            "SW_MAPS": int(most > 0), "SW_ALIGNMENT": ALIGNMENT, "SW_MAX_BYTES": f"INT64_C({MAX_BYTES})",
            "SW_TARGET_NAMES": f'"{", ".join(self.targets)}"', "SW_ALONE": int(is_alone),
        }  # fmt: skip
        return "\n".join([
            "#define _GNU_SOURCE",
            *(f"#include <{header}.h>" for header in INCLUDES),
            *(f"#define {key} {value}" for key, value in defines.items()),
            *(files(__package__).joinpath(name).read_text() for name in RUNTIME),
            *self._tables(),
            *(_Function(kernel, self._numbers(kernel), f"kernel_{at}").text for at, kernel in enumerate(self.kernels)),
            *self._choice(name),
        ])  # fmt: skip

    def _choice(self, name: str) -> Iterator[str]:
        workload = self.kernels[0].module.workload
        place, names = len(workload.operands) + len(workload.symbols), range(len(self.kernels))
        yield f"SW_HIDDEN int {name}({PARAMETERS}) {{"
        yield f"  static int (*const kernels[])({PARAMETERS}) = {{{', '.join(f'kernel_{at}' for at in names)}}};"
        yield f"  return kernels[arguments[{place}].value.number](self, arguments, count, result);"
        yield "}\n"

    def _numbers(self, kernel: GpuKernel) -> list[int]:
        return [self._functions[self._code(kernel, place)] for place in range(len(kernel.module.launches))]

    def _tables(self) -> Iterator[str]:
        for number, file in enumerate(self.binaries.values()):
            yield f"extern const unsigned char sw_binary_{number}[] SW_HIDDEN;"
            label = f".globl sw_binary_{number}\\n.hidden sw_binary_{number}\\nsw_binary_{number}:"
            yield f'__asm__(".pushsection .rodata\\n.balign 64\\n{label}\\n.incbin \\"{file}\\"\\n.popsection");'
        rows = []
        for target in self.targets:
            found = TARGET.fullmatch(target)
            assert found is not None
            rows.append(f"  {{{found[1]}, {found[2]}, '{found[3] or ' '}'}},")
        yield from ("static const sw_target sw_targets[SW_TARGETS] = {", *rows, "};")
        yield "static const sw_code sw_codes[SW_FUNCTIONS][SW_TARGETS] = {"
        places = {binary: number for number, binary in enumerate(self.binaries)}
        for code in self._functions:
            yield "  {"
            for cubin in code:
                boxes = ", ".join(
                    f"{{{each.element}, {each.element_bytes}, {each.swizzle}, {each.box[0]}, {each.box[1]}}}"
                    for each in cubin.maps
                )
                threads = WARP * cubin.num_warps
                binary = f"sw_binary_{places[cubin.binary]}"
                yield f'    {{"{cubin.name}", {binary}, {cubin.shared_bytes}, {threads}, {{{boxes or "{0}"}}}}},'
            yield "  },"
        yield "};"


@dataclass(frozen=True)
class _Function:
    """The function of one kernel. ``numbers``: that of each launch's code."""

    kernel: GpuKernel
    numbers: Sequence[int]
    name: str

    @cached_property
    def module(self) -> Module:
        return self.kernel.module

    @property
    def text(self) -> str:
        workload, module = self.module.workload, self.module
        lines = [
            f"static int {self.name}({PARAMETERS}) {{",
            "  (void)self, (void)count;",
            "  *result = (sw_any){0};",
        ]
        for place, tensor in enumerate(workload.operands):
            lines.append(f"  void *p_{tensor.name} = arguments[{place}].value.pointer;")
        for place, symbol in enumerate(workload.symbols, len(workload.operands)):
            lines.append(f"  const int64_t s_{symbol} = arguments[{place}].value.number;")
            lines.append(f'  if (sw_check_size("{symbol}", s_{symbol})) return -1;')
        lines += self._checks()
        number = len(workload.operands) + len(workload.symbols) + 1
        lines += [
            "  sw_call call;",
            f"  if (sw_begin(&call, (int)arguments[{number}].value.number)) return -1;",
            *self._scratch(),
        ]
        for place, launch in enumerate(module.launches):
            lines += self._launch(place, launch)
        return "\n".join([*lines, "  return sw_finish(&call, failed);", "}\n"])

    @property
    def _most(self) -> str:
        return "INT64_MAX" if self.module.is_wide else f"INT64_C({MAX_NARROW})"

    def _checks(self) -> Iterator[str]:
        symbols = {name: f"s_{name}" for name in self.module.workload.symbols}
        for tensor in self.module.workload.operands:
            sizes = [f"max({dim_text(dim, symbols, is_host=True)}, 0)" for dim in tensor.dims]
            elements = c_expression(" * ".join(sizes) or "1")
            yield f'  if (sw_check_operand("{tensor.name}", p_{tensor.name}, {elements}, {self._most})) return -1;'

    def _scratch(self) -> Iterator[str]:
        """Offsets of scratch memory, and its allocation as a whole."""
        total = "INT64_C(0)"
        for each in self.module.scratch:
            yield f"  const int64_t o_{each.name} = {total};"
            yield f"  const int64_t n_{each.name} = sw_max({c_expression(each.size)}, 1);"
            total = f"sw_add(o_{each.name}, {self._bytes(each)})"
        checks = [f'sw_check_operand("{each.name}", 0, n_{each.name}, {self._most})' for each in self.module.scratch]
        yield f"  int failed = {' || '.join([*checks, f'sw_allocate(&call, {total})'])};"
        for each in self.module.scratch:
            yield f"  void *p_{each.name} = call.memory + o_{each.name};"

    @staticmethod
    def _bytes(each: Scratch) -> str:
        size = f"sw_multiply(n_{each.name}, {DTYPES[each.dtype].bytes})"
        return f"sw_multiply(sw_ceil_div({size}, {SCRATCH_ALIGNMENT}), {SCRATCH_ALIGNMENT})"

    def _launch(self, place: int, launch: Launch) -> Iterator[str]:
        function, grid = self.numbers[place], f"grid_{place}"
        sizes = [c_expression(size) for size in launch.grid] + ["1"] * (AXES - len(launch.grid))
        yield f"  const int64_t {grid}[] = {{{', '.join(sizes)}}};"
        yield f"  const int is_{grid} = failed ? 0 : sw_is_grid({grid});"
        yield f"  if (is_{grid} < 0) failed = -1;"
        yield f"  if (is_{grid} > 0) {{"
        parameters = [f"&p_{pointer}" for pointer in launch.function.pointers]
        for number, matrix in enumerate(launch.function.descriptors):
            yield from self._map(function, number, matrix)
            parameters += [f"&{matrix.name}_{part}" for part in ("map", "m", "n", "step", "one")]
        for symbol in launch.function.symbols:
            yield f"    int32_t i_{symbol} = (int32_t)s_{symbol};"
            parameters.append(f"&i_{symbol}")
        yield "    void *none = NULL;"
        parameters += ["&none"] * SCRATCH_POINTERS
        yield f"    void *parameters[] = {{{', '.join(parameters)}}};"
        yield f"    if (!failed) failed = sw_launch(&call, {function}, {grid}, parameters);"
        yield "  }"

    def _map(self, function: int, place: int, matrix: Descriptor) -> Iterator[str]:
        rows, columns = map(c_expression, matrix.shape)
        name = matrix.name
        yield f"    int64_t {name}_rows = {rows}, {name}_step = {columns}, {name}_one = 1;"
        yield f"    int32_t {name}_m = (int32_t){name}_rows, {name}_n = (int32_t){name}_step;"
        yield f"    sw_map {name}_map;"
        passed = f"{function}, {place}, &{name}_map, p_{matrix.tensor}, {name}_rows, {name}_step"
        yield f"    if (!failed) failed = sw_encode(&call, {passed});"
