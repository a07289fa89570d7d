"""Trials as flat tables: one column for each shape variable and each axis of the kernels."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuner.errors import InvalidInput
from tuner.figures.axes import meanings_of
from tuner.schedule.space import readable
from tuner.storage import Job, SearchTaskRow
from tuner.storage.sql import ClientStorage
from tuner.storage.trials import TrialLine, TrialOrder, TrialQuery

PIECE = 2000
"""Trials that are read at once."""
GROUP = 20_000
"""Trials of a row group of Parquet."""
READ_BYTES = 1 << 20
EARLIER = "choices_of_earlier_versions"
"""The column of choices on axes that this version's space lacks: ``old=3 older=1``."""
FIGURES = ("latency_s", "predicted_s", "build_s", "run_s", "anchor_s")
PLAIN = ("error_kind", "error", "round", "phase", "attempt", "device", "created_at")


@dataclass(frozen=True)
class Flat:
    """The trials of one search task that a query lets through, in the order stored, as rows of columns."""

    storage: ClientStorage
    job: Job
    row: SearchTaskRow
    query: TrialQuery

    @property
    def variables(self) -> list[str]:
        return [var.name for var in self.row.task.shape_vars]

    @property
    def axes(self) -> list[str]:
        """The names that people are shown of all axes of the space."""
        return sorted({readable(name) for axes in meanings_of(self.row.task).values() for name in axes})

    @property
    def columns(self) -> list[str]:
        about = ["seq", "job_id", "workload_key", "target", "threads", "cache", "kernel_id", "rule"]
        shapes = [*(f"shape_{name}" for name in self.variables), "weight"]
        return [*about, *shapes, *FIGURES, "samples_s", *PLAIN, *(f"axis_{name}" for name in self.axes), EARLIER]

    def pieces(self) -> Iterator[list[dict[str, Any]]]:
        """Rows, so many at a time; a value that a trial lacks is left out."""
        query = replace(self.query, order=TrialOrder.STORED, descending=False, cursor=None, limit=PIECE)
        variables, axes = self.variables, frozenset(self.axes)
        while True:
            table = self.storage.find_trials(self.row.id, query)
            if table.items:
                yield [self._flat(line, variables, axes) for line in table.items]
            if table.cursor is None:
                return
            query = replace(query, cursor=table.cursor)

    def _flat(self, line: TrialLine, variables: list[str], axes: frozenset[str]) -> dict[str, Any]:
        named, shape = line.kernel.named, line.instance.shape
        earlier = " ".join(f"{name}={value}" for name, value in named.items() if name not in axes)
        return {
            "seq": line.seq,
            "job_id": self.job.id,
            "workload_key": self.row.workload_key,
            "target": self.row.target_fingerprint,
            "threads": self.row.task.threads,
            "cache": self.row.task.cache.value,
            "kernel_id": line.kernel_id,
            "rule": line.kernel.rule,
            "weight": line.instance.weight,
            "samples_s": " ".join(map(repr, line.samples_s)),
            **{f"shape_{name}": shape[name] for name in variables if name in shape},
            **{name: getattr(line, name) for name in (*FIGURES, *PLAIN)},
            **{f"axis_{name}": value for name, value in named.items() if name in axes},
            EARLIER: earlier or None,
        }


def as_csv(flat: Flat) -> Iterator[bytes]:
    """A header, then the rows (RFC 4180)."""
    text = io.StringIO()
    writer = csv.DictWriter(text, flat.columns, restval="", lineterminator="\r\n")
    writer.writeheader()
    yield text.getvalue().encode()
    for rows in flat.pieces():
        text.seek(0)
        text.truncate()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
        yield text.getvalue().encode()


def as_parquet(flat: Flat) -> Iterator[bytes]:
    """The same as a Parquet file, of typed columns. Raises InvalidInput on ``format`` without pyarrow."""
    try:
        import pyarrow as pa  # noqa: PLC0415 - 170 MB that few need
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ImportError:
        problem, remedy = "this service has no library that writes Parquet", "csv; or install shapewright[parquet]"
        raise InvalidInput("format", problem, remedy) from None
    schema = pa.schema([(name, _arrow_type(name, pa)) for name in flat.columns])
    return _written(flat, schema, pa, pq)


def _written(flat: Flat, schema: Any, pa: Any, pq: Any) -> Iterator[bytes]:
    with tempfile.TemporaryFile() as file:
        with pq.ParquetWriter(file, schema) as writer:
            held: list[Mapping[str, Any]] = []
            for rows in flat.pieces():
                held += rows
                if len(held) >= GROUP:
                    writer.write_table(pa.Table.from_pylist(held, schema))
                    held = []
                # A piece without content: the thread is given back, and others have their turn.
                yield b""
            writer.write_table(pa.Table.from_pylist(held, schema))
        file.seek(0)
        while piece := file.read(READ_BYTES):
            yield piece


def _arrow_type(name: str, pa: Any) -> Any:
    whole = ("seq", "threads", "round", "attempt")
    if name in whole or name.startswith(("axis_", "shape_")):
        return pa.int64()
    return pa.float64() if name in (*FIGURES, "weight") else pa.string()


def _cell(value: object) -> object:
    """A value of CSV. Text that a spreadsheet would take for a formula is kept from that."""
    if isinstance(value, float):
        return repr(value)
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
