"""What a module's own ``run`` would launch, found out without Triton, and in what a recorded call differs from it."""

from __future__ import annotations

import builtins
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.tuner.library.gpu.driven import SHARED_BYTES
from tuner.program.language.dtypes import DTYPES
from tuner.schedule.gpu.cubin import SCRATCH_POINTERS
from tuner.schedule.gpu.module import Module


@dataclass(frozen=True)
class Matrix:
    """A descriptor as ``run`` passes it."""

    tensor: str
    shape: tuple[int, int]
    strides: tuple[int, int]
    block: tuple[int, int]


@dataclass(frozen=True)
class Started:
    """A launch as ``run`` starts it: tensors by name, descriptors, numbers."""

    name: str
    grid: tuple[int, ...]
    num_warps: int
    arguments: tuple[str | Matrix | int, ...]


@dataclass
class _Tensor:
    name: str
    device: str = "cuda"


class _Anything:
    """Stands for a module that an emitted file imports."""

    def __getattr__(self, name: str) -> Any:
        return _Anything()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return _Anything()


def started_by(module: Module, dims: Mapping[str, int]) -> tuple[list[Started], dict[str, int]]:
    """What ``run`` of a module launches at these values of its symbols, and the elements of its scratch memory."""
    started, scratch, names = list[Started](), dict[str, int](), iter(module.scratch)

    class Function:
        def __init__(self, body: Any) -> None:
            self.name = body.__name__

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def launch(*arguments: Any, num_warps: int, num_stages: int) -> None:
                plain = tuple(each.name if isinstance(each, _Tensor) else each for each in arguments)
                started.append(Started(self.name, grid, num_warps, plain))

            return launch

    class Torch(_Anything):
        def empty(self, size: int, **_: Any) -> _Tensor:
            name = next(names).name
            scratch[name] = size
            return _Tensor(name)

    class Triton(_Anything):
        jit = Function

    def described(base: _Tensor, shape: list[int], strides: list[int], block: list[int]) -> Matrix:
        return Matrix(base.name, (shape[0], shape[1]), (strides[0], strides[1]), (block[0], block[1]))

    def imported(name: str, *_: Any) -> Any:
        stand_in = Torch() if name == "torch" else Triton()
        stand_in.TensorDescriptor = described  # type: ignore[union-attr]
        stand_in.language = _Anything()  # type: ignore[union-attr]
        return stand_in

    space: dict[str, Any] = {"__builtins__": {**vars(builtins), "__import__": imported}}
    exec(compile("from __future__ import annotations\n" + module.text, "emitted", "exec"), space)
    operands = [_Tensor(each.name) for each in module.workload.operands]
    space["run"](*operands, *(dims[name] for name in module.workload.symbols))
    return started, scratch


def differences(
    module: Module, dims: Mapping[str, int], arrays: Sequence[Any], calls: Sequence[Mapping[str, Any]], stream: int
) -> list[str]:
    """In what the recorded calls are not what ``run`` would do; ``arrays`` are the operands."""
    wanted, scratch = started_by(module, dims)
    launches = [call for call in calls if call["call"] == "launch"]
    if [call["name"] for call in launches] != [each.name for each in wanted]:
        return [f"{dims}: launched {[call['name'] for call in launches]}, not {[each.name for each in wanted]}"]
    memory = {
        each.name: (array.ctypes.data, array.nbytes)
        for each, array in zip(module.workload.operands, arrays, strict=True)
    }
    found, places = list[str](), dict[str, int]()
    taken = next(((call["address"], call["bytes"]) for call in calls if call["call"] in ("allocate", "taken")), (0, 0))
    for call, each in zip(launches, wanted, strict=True):
        grid = [*each.grid, 1, 1][:3]
        if call["grid"] != grid or call["block"] != [32 * each.num_warps, 1, 1] or call["stream"] != stream:
            found.append(f"{dims}: {call} is not {each}")
        if call["shared"] != SHARED_BYTES:
            found.append(f"{dims}: {call['shared']} bytes of shared memory")
        values = [bytes.fromhex(text) for text in call["parameters"]]
        found += [f"{dims} {each.name}: {why}" for why in _parameters(values, each, memory, places)]
    dtypes = module.dtypes
    ends = []
    for name, address in places.items():
        end = address + scratch[name] * DTYPES[dtypes[name]].bytes
        if address % 256 or address < taken[0] or end > taken[0] + taken[1]:
            found.append(f"{dims}: {name} at {address} is outside of {taken}")
        ends.append((address, end))
    if any(end > following for (_, end), (following, _) in zip(sorted(ends), sorted(ends)[1:], strict=False)):
        found.append(f"{dims}: scratch memory overlaps, {places}")
    return found


def _parameters(
    values: Sequence[bytes], wanted: Started, memory: Mapping[str, tuple[int, int]], places: dict[str, int]
) -> Iterator[str]:
    at = iter(values)
    for each in wanted.arguments:
        match each:
            case str(name):
                yield from _place(name, struct.unpack("<q", next(at))[0], memory, places)
            case Matrix():
                value = next(at)
                yield from _place(each.tensor, struct.unpack_from("<q", value)[0], memory, places)
                yield from _map(value, each)
                rest = [
                    struct.unpack("<i" if len(value) == 4 else "<q", value)[0] for value in (next(at) for _ in "four")
                ]
                if rest != [*each.shape, *each.strides]:
                    yield f"{each} comes with {rest}"
            case int(number):
                if struct.unpack("<i", next(at)) != (number,):
                    yield f"a number is not {number}"
    if [bytes(8)] * SCRATCH_POINTERS != list(at):
        yield "the last two pointers are not null"


def _place(name: str, address: int, memory: Mapping[str, tuple[int, int]], places: dict[str, int]) -> Iterator[str]:
    """Whether a tensor is where it is known to be; scratch memory is where it is first seen."""
    known = memory[name][0] if name in memory else places.setdefault(name, address)
    if address != known:
        yield f"{name} is at {address}, not at {known}"


def _map(value: bytes, wanted: Matrix) -> Iterator[str]:
    _base, flags, _element, columns, rows, stride, box_columns, box_rows, swizzle, promotion, fill, *_ = struct.unpack(
        "<16Q", value
    )
    if (rows, columns) != wanted.shape or (box_rows, box_columns) != wanted.block:
        yield f"{wanted} is {rows} x {columns} by {box_rows} x {box_columns}"
    is_small = rows * stride < 128 << 10
    if (swizzle, promotion, fill) != (3, 2, 0) or bool(flags) is is_small:
        yield f"{wanted}: swizzle {swizzle}, promotion {promotion}, fill {fill}, flags {flags}"
