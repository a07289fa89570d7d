"""The contenders of a comparison: for a shape, the call that each makes on the same inputs.

Spinning thread pools disturb each other, so with more than one thread each contender lives in a process of its own and
they take turns across processes.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.alternating import Sampler, sampler
from benchmarks.rivals import DoesNotApply
from tuner.measure.verification.inputs import random_inputs
from tuner.program.job.build import workload_from_json
from tuner.program.language.arrays import NUMPY
from tuner.program.language.expr import Read
from tuner.program.language.workload import Workload
from tuner.program.target import Target, native
from tuner.schedule.layout import aligned

if TYPE_CHECKING:
    from shapewright.library import Library

Array = NDArray[Any]
Shape = Mapping[str, int]
Call = Callable[[], object]
Contender = Callable[[Shape], Call]
ANSWER_S = 600.0
REST_S, WAKE_S = 0.03, 0.03
METASCHEDULE = "metaschedule"
"""The one contender with a directory that is no library of ours."""
DLIGHT = "dlight"
SEPARATE = "separate"
"""Two libraries of ours one after the other, those of ``bare`` and ``chain`` in its directory, beside one that fuses
them."""
OURS = "ours"
PEAK = "peak"
"""Does multiply-adds in registers, for the share of the peak that a kernel reaches."""
STREAM = "stream"
"""Reads and writes as many bytes as the workload's operands have, for the share of the bandwidth."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS")


def limit_threads(threads: int) -> None:
    """Limit the threads of libraries that are not loaded yet, as PyTorch and TVM: they read the environment then."""
    for name in THREAD_VARIABLES:
        os.environ[name] = str(threads)


def inputs_of(workload: Workload, shape: Shape) -> list[Array]:
    """The inputs of a call at ``shape``: the same ones in every process, a constant the same at every shape."""
    dims = workload.dims(shape)
    # Aligned as PyTorch's own allocator does it: NumPy's arrays begin anywhere.
    arrays = {
        tensor.name: aligned(array)
        for tensor, array in zip(workload.inputs, random_inputs(workload, dims), strict=True)
    }
    for read in workload.program.reads:
        sizes = workload.tensors[read.tensor].shape(dims)
        for index, size in zip(read.indices, sizes, strict=True):
            if isinstance(index, Read) and index.tensor in arrays:
                # Drawn to lie out of bounds, too, which ours clamps and others refuse.
                np.clip(arrays[index.tensor], 0, max(size - 1, 0), out=arrays[index.tensor])
    return list(arrays.values())


def outputs_of(workload: Workload, shape: Shape) -> list[Array]:
    """Room for the outputs of a call at ``shape``, aligned as the inputs are."""
    dims = workload.dims(shape)
    return [aligned(np.zeros(tensor.shape(dims), NUMPY[tensor.dtype])) for tensor in workload.outputs]


def library_call(library: Library, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
    """The call of a library of ours, constants packed for it."""
    operands = [
        library.pack(tensor.name, array) if tensor.constant else _passed(array)
        for tensor, array in zip(library.workload.operands, (*inputs, *outputs), strict=True)
    ]
    return lambda: library(*operands)


def _passed(array: Array) -> object:
    """An array as a user hands it over: NumPy's own arrays as they are, those of bfloat16 as tensors."""
    from tuner.measure.tensors import tensor_of  # noqa: PLC0415 - not in the processes of rivals

    return tensor_of(array) if array.dtype.name == "bfloat16" else array


def contender(
    name: str, workload: Workload, library: Path | None, threads: int, target: Target | None = None
) -> Contender:
    """A library of ours in ``library``, the rival of that name, PEAK or STREAM. Raises DoesNotApply.

    ``target``: whose instructions PEAK and STREAM use; by default this machine's.
    """
    if name == PEAK:
        from tuner.measure.roof import peak_call  # noqa: PLC0415
        from tuner.measure.roof.kernels import loaded_roof  # noqa: PLC0415 - compiles

        call_at_peak = peak_call(loaded_roof(target or native(), 1), target or native())
        return lambda shape: call_at_peak
    if name == STREAM:
        from benchmarks.streaming import Stream  # noqa: PLC0415 - compiles

        stream = Stream(target or native(), threads)
        return lambda shape: stream.call(*stream_bytes(workload, shape))
    if library is not None and name == METASCHEDULE:
        from benchmarks import metaschedule  # noqa: PLC0415 - only where this rival is asked for

        return metaschedule.prepare(workload, library)
    if library is not None and name == SEPARATE:
        return _separate(library)
    if library is not None:
        return _ours(workload, library)
    if name == DLIGHT:
        from benchmarks.static_rivals import dlight  # noqa: PLC0415 - only where this rival is asked for

        return dlight(workload, threads)
    from benchmarks.rivals import RIVALS, torch_module  # noqa: PLC0415

    prepared = RIVALS[name].prepare(workload)
    torch_module().set_num_threads(threads)
    return lambda shape: prepared(inputs_of(workload, shape))


def stream_bytes(workload: Workload, shape: Shape) -> tuple[int, int]:
    """The bytes of all inputs, and of all outputs, of a call at ``shape``."""
    dims = workload.dims(shape)
    read, written = (sum(tensor.bytes(dims) for tensor in tensors) for tensors in (workload.inputs, workload.outputs))
    return read, written


def _ours(workload: Workload, directory: Path) -> Contender:
    import shapewright as sw  # noqa: PLC0415 - not in the processes of rivals

    library = sw.load(directory)
    return lambda shape: library_call(library, inputs_of(workload, shape), outputs_of(workload, shape))


def _separate(directory: Path) -> Contender:
    """The first library's output is the first input of the second, whose other inputs follow those of the first."""
    import shapewright as sw  # noqa: PLC0415 - not in the processes of rivals

    bare, chain = (sw.load(directory / part / OURS) for part in ("bare", "chain"))
    return lambda shape: separate_call(bare, chain, shape, outputs_of(chain.workload, shape))


def separate_call(bare: Library, chain: Library, shape: Shape, outputs: Sequence[Array]) -> Call:
    """The two calls at ``shape``, with what lies between them in memory of its own."""
    between = outputs_of(bare.workload, shape)
    first = library_call(bare, inputs_of(bare.workload, shape), between)
    others = inputs_of(chain.workload, shape)[len(between) :]
    second = library_call(chain, [*between, *others], outputs)

    def call() -> None:
        first()
        second()

    return call


@contextmanager
def in_own_process(
    name: str, workload: Workload, library: Path | None, threads: int, target: Target | None = None
) -> Iterator[Callable[[Shape], Sampler]]:
    """The samplers of one contender. Raises DoesNotApply, and TimeoutError if it does not answer."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    args = (theirs, name, workload.to_json(), library, threads, target)
    process = context.Process(target=_serve, args=args, daemon=True)
    process.start()
    # Held by that process alone: its end is the end of the connection.
    theirs.close()
    try:
        _answer(name, ours)

        def samples(shape: Shape) -> Sampler:
            def sample(number: int) -> float:
                try:
                    ours.send((dict(shape), number))
                except BrokenPipeError:
                    raise DoesNotApply("its process died") from None
                return float(_answer(name, ours))

            # Raises DoesNotApply where the contender does not serve the shape.
            sample(1)
            return sample

        yield samples
    finally:
        process.terminate()
        process.join(ANSWER_S)


def _answer(name: str, connection: Connection) -> float:
    if not connection.poll(ANSWER_S):
        raise TimeoutError(f"{name} did not answer within {ANSWER_S:g} s")
    try:
        answer = connection.recv()
    except EOFError:
        raise DoesNotApply("its process died") from None
    if isinstance(answer, Exception):
        raise answer
    return float(answer)


def _rested(sample: Sampler, number: int) -> float:
    """A sample after the pools of earlier contenders have stopped to spin, and after this one's own has woken up."""
    time.sleep(REST_S)
    started = time.perf_counter()
    while time.perf_counter() - started < WAKE_S:
        sample(1)
    return sample(number)


def _serve(
    connection: Connection, name: str, workload: dict[str, object], library: Path | None, threads: int,
    target: Target | None,
) -> None:  # fmt: skip
    """Answer requests for samples until the connection ends. The first answer says whether the contender applies."""
    limit_threads(threads)
    known: tuple[Shape, Sampler] | None = None
    try:
        call = contender(name, workload_from_json(workload), library, threads, target)
        connection.send(0.0)
        while True:
            shape, number = connection.recv()
            try:
                if known is None or known[0] != shape:
                    known = (shape, sampler(call(shape)))
            except DoesNotApply as reason:
                connection.send(reason)
                continue
            connection.send(_rested(known[1], number))
    except EOFError:
        return
    except Exception as error:
        connection.send(error)
