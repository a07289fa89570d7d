"""Jobs for a CPU that has tiles, by theory alone: what their libraries do for many rows, and for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.searched import searched
from tuner.library.dispatcher import Dispatcher
from tuner.library.package import check_files, dispatcher_of
from tuner.storage import JobState
from tuner.storage.sql import Storage

pytestmark = pytest.mark.usefixtures("local_device")
SAPPHIRE_RAPIDS = {"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2}
DTYPES: Mapping[str, tuple[Any, int]] = {
    "bfloat16": ("bfloat16", 32),
    "int8": ({"x": "int8", "w": "int8", "out": "int32"}, 64),
}


def library_for(storage: Storage, dtype: Any, most: int) -> Dispatcher:
    """That of a job for up to so many rows."""
    job = searched(
        storage,
        workload={"op": "dense", "args": {"m": "T", "n": 768, "k": 768}, "dtype": dtype},
        shape_vars={"T": {"min": 1, "max": most}},
        instances=[{"T": rows} for rows in (1, 64, 256, 1024) if rows <= most],
        target=SAPPHIRE_RAPIDS,
        budget={"trials": 0},
    )
    assert job.state is JobState.COMPLETED, job.error
    ((_, library),) = storage.libraries_of_job(job.id)
    files = storage.artifact_files(library.digest)
    return dispatcher_of(files, check_files(files))


@pytest.mark.parametrize("name", DTYPES)
def test_many_rows_are_multiplied_in_tiles_and_a_single_one_by_vectors(name: str, storage: Storage) -> None:
    dtype, depth = DTYPES[name]
    many, single = library_for(storage, dtype, 1024), library_for(storage, dtype, 1)
    assert [many.kernel_for({"T": rows}).get("group") == depth for rows in (64, 256, 1024)] == [True] * 3
    assert 1 < single.kernel_for({"T": 1})["group"] < depth
