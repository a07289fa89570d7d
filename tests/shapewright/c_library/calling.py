"""Libraries in their C form, made for a test and called from it through ctypes."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapewright.c_library.project import write_project
from shapewright.c_library.source import CSource
from tests.compiled import small_kernel
from tuner.library.build import build_library
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.library.package import DISPATCH, MANIFEST
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Tensor
from tuner.schedule import rules_of

Array = NDArray[Any]


def files_of(task: SearchTask, rule: str | None = None) -> Mapping[str, bytes]:
    """A library of a small kernel; of the safe one of that rule, if one is named."""
    own = next((each for each in rules_of(task) if each.name == rule), None)
    kernel = own.default_kernel(task) if own else small_kernel(task)
    return build_library(Dispatcher(task, (kernel,), 0, Leaf(0)), "job-1").files


class CLibrary:
    """The shared library of a project, its functions as C has them."""

    def __init__(self, files: Mapping[str, bytes], directory: Path, name: str = "layer") -> None:
        path = write_project(files, directory, name)
        dispatcher = Dispatcher.from_json(json.loads(files[DISPATCH]))
        self.texts = CSource(name, json.loads(files[MANIFEST]), dispatcher)
        self.workload = dispatcher.task.workload
        self._library = ctypes.CDLL(str(path))
        self._function = self._library[f"shapewright_{name}"]
        self.error: Callable[[], bytes] = self._library[f"shapewright_{name}_error"]
        self.error.restype = ctypes.c_char_p

    def packed(self, tensor: Tensor, array: Array, dims: Mapping[str, int]) -> Array:
        """A constant as C packs it, in the form that Python's ``pack`` gives it."""
        name = self.texts.function
        sizes = [ctypes.c_int64(dims[symbol]) for symbol in self.texts.symbols_of(tensor)]
        size_of = self._library[f"{name}_packed_{tensor.name}_bytes"]
        size_of.restype = ctypes.c_size_t
        shape = self.texts.layouts[tensor.name].packed_shape(array.shape)
        result = np.full(shape, 77, array.dtype) if array.dtype.kind != "V" else np.zeros(shape, array.dtype)
        assert size_of(*sizes) == result.nbytes
        given = np.ascontiguousarray(array)
        assert self._library[f"{name}_pack_{tensor.name}"](_pointer(given), _pointer(result), *sizes) == 0
        return result

    def call(self, operands: Sequence[Array | None], dims: Mapping[str, int]) -> int:
        """The status."""
        sizes = [ctypes.c_int64(dims[symbol]) for symbol in self.texts.symbols]
        return int(self._function(*map(_pointer, operands), *sizes))


def _pointer(array: Array | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)
