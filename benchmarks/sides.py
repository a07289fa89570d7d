"""The sides of a comparison: for a shape, the call each makes on the same inputs; here or in processes of their own.

Spinning thread pools disturb each other, so with more than one thread each side lives in a process of its own and they
take turns across processes.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from benchmarks.alternating import Sampler, sampler
from tuner.program.target import native
from tuner.program.workload import Workload
from tuner.rules.layout import aligned

if TYPE_CHECKING:
    from shapewright.library import Library

Array = NDArray[np.float32]
Shape = Mapping[str, int]
Call = Callable[[], object]
WAIT_S = 600.0
REST_S, WAKE_S = 0.03, 0.03
METASCHEDULE = "metaschedule"
"""The one side with a directory that is no library of ours."""
PEAK = "peak"
"""The side that does multiply-adds in registers, for the share of the peak that a kernel reaches."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS")


def limit_threads(threads: int) -> None:
    """For libraries that are not loaded yet, as PyTorch and TVM: they read the environment when they are."""
    for name in THREAD_VARIABLES:
        os.environ[name] = str(threads)


def inputs_of(workload: Workload, shape: Shape) -> list[Array]:
    """The inputs of a call at ``shape``, in [-1, 1): the same in every process, a constant one at every shape."""
    extents = workload.extents(shape)
    arrays = []
    for operand in workload.operands[:-1]:
        size = tuple(extents[axis] for axis in operand.axes)
        rng = np.random.default_rng([zlib.crc32(operand.name.encode()), *size])
        # Aligned as PyTorch's own allocator does it: NumPy's arrays begin anywhere.
        arrays.append(aligned(rng.uniform(-1, 1, size).astype(np.float32)))
    return arrays


def output_of(workload: Workload, shape: Shape) -> Array:
    """Room for the output of a call at ``shape``, aligned as the inputs are."""
    extents = workload.extents(shape)
    return aligned(np.zeros([extents[axis] for axis in workload.operands[-1].axes], np.float32))


def library_call(library: Library, inputs: Sequence[Array], out: Array) -> Call:
    """The call of a library of ours, a constant input packed for it."""
    operands = library.workload.operands
    given = [
        library.pack(array) if operand.constant else array
        for operand, array in zip(operands, inputs, strict=False)
    ]
    return lambda: library(*given, out)


def side(
    name: str, workload: Workload, any_shape: Shape, library: Path | None, threads: int
) -> Callable[[Shape], Call]:
    """The calls of one side: a library of ours in ``library``, the rival of that name, or PEAK. Raises DoesNotApply."""
    if name == PEAK:
        from tuner.measure.roof import peak_call  # noqa: PLC0415 - compiles

        call_at_peak = peak_call(native())
        return lambda shape: call_at_peak
    constant = workload.op.contraction.right.constant
    weight = inputs_of(workload, any_shape)[1] if constant else None
    if library is not None and name == METASCHEDULE:
        from benchmarks import metaschedule  # noqa: PLC0415 - only where this rival is asked for

        return metaschedule.prepare(workload, library, weight)
    if library is not None:
        return _ours(workload, library, weight)
    import torch  # noqa: PLC0415 - only where a rival is asked for

    from benchmarks.rivals import RIVALS  # noqa: PLC0415

    torch.set_num_threads(threads)
    prepared = RIVALS[name].prepare(workload, weight)

    def call(shape: Shape) -> Call:
        left, right = inputs_of(workload, shape)[:2]
        return prepared(left, right)

    return call


def _ours(workload: Workload, directory: Path, weight: Array | None) -> Callable[[Shape], Call]:
    import shapewright as sw  # noqa: PLC0415 - not in the processes of rivals

    library = sw.load(directory)
    packed = library.pack(weight) if weight is not None else None

    def call(shape: Shape) -> Call:
        inputs: list[object] = list(inputs_of(workload, shape))
        if packed is not None:
            inputs[1] = packed
        out = output_of(workload, shape)
        return lambda: library(*inputs, out)

    return call


@contextmanager
def elsewhere(
    name: str, workload: Workload, any_shape: Shape, library: Path | None, threads: int
) -> Iterator[Callable[[Shape], Sampler]]:
    """The samplers of one side in a process of its own. Raises DoesNotApply, and TimeoutError if it does not answer."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve, args=(theirs, name, workload.to_json(), dict(any_shape), library, threads), daemon=True
    )
    process.start()
    try:
        _answer(name, ours)

        def samples(shape: Shape) -> Sampler:
            def sample(number: int) -> float:
                ours.send((dict(shape), number))
                return float(_answer(name, ours))

            return sample

        yield samples
    finally:
        process.terminate()
        process.join(WAIT_S)


def _answer(name: str, connection: Connection) -> float:
    if not connection.poll(WAIT_S):
        raise TimeoutError(f"{name} did not answer within {WAIT_S:g} s")
    answer = connection.recv()
    if isinstance(answer, Exception):
        raise answer
    return float(answer)


def _rested(sample: Sampler, number: int) -> float:
    """A sample after the pools of the sides before have stopped to spin, and after this side's own has woken up."""
    time.sleep(REST_S)
    started = time.perf_counter()
    while time.perf_counter() - started < WAKE_S:
        sample(1)
    return sample(number)


def _serve(
    connection: Connection, name: str, workload: dict[str, object], any_shape: Shape, library: Path | None, threads: int
) -> None:
    """Answer requests for samples until the connection ends. The first answer says whether the side applies."""
    limit_threads(threads)
    known: tuple[Shape, Sampler] | None = None
    try:
        call = side(name, Workload.from_json(workload), any_shape, library, threads)
        connection.send(0.0)
        while True:
            shape, number = connection.recv()
            if known is None or known[0] != shape:
                known = (shape, sampler(call(shape)))
            connection.send(_rested(known[1], number))
    except EOFError:
        return
    except Exception as error:
        connection.send(error)
