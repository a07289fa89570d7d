"""How operands are brought out of the caches before a timed call, by the state of the caches that a task asks for.

Line by line, by an instruction that takes effect on every cache of every core (clflush, dc civac; a function of TVM's
runtime). Reading something larger than the last cache in between, or turning through copies, would take as much memory
as that cache has twice over, and it may have half a gigabyte: see docs/decisions/0080-protocols-of-the-caches.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tuner.measure.tensors import tensor_of
from tuner.measure.timing.protocol import Flush
from tuner.measure.verification.guarded import Array
from tuner.program.job.cache import Cache
from tuner.program.job.task import SearchTask

FLUSH = "cache_flush_cpu_non_first_arg"


def flush_of(task: SearchTask, read: Iterable[tuple[str, Array]], outputs: Sequence[Array]) -> Flush | None:
    """What comes before every call that reads these arrays, each with the name of the tensor that it has; None where
    they stay as calls leave them."""
    names = flushed_inputs(task)
    inputs = [array for name, array in read if name in names]
    chosen = [*inputs, *(outputs if task.cache is Cache.COLD else ())]
    return flush_arrays(chosen) if chosen else None


def flushed_inputs(task: SearchTask) -> list[str]:
    """The inputs that a call finds in memory."""
    if task.cache is Cache.WARM:
        return []
    return [tensor.name for tensor in task.workload.inputs if tensor.constant or task.cache is Cache.COLD]


def flush_arrays(arrays: Sequence[Array]) -> Flush:
    """Brings these out of all caches."""
    import tvm_ffi  # noqa: PLC0415  (loads a native library)

    flush, tensors = tvm_ffi.get_global_func(FLUSH), list(map(tensor_of, arrays))
    return lambda: flush(None, *tensors)


def flushed(call: Callable[[], object], flush: Flush | None) -> Callable[[], object]:
    """A call that finds its operands flushed."""
    return call if flush is None else lambda: (flush(), call())
