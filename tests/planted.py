"""Faults planted one by one, each of which a test of `make test` must catch: what the quick suite may not lose.

    python -m tests.planted            # all of them, in some minutes
    python -m tests.planted cursor     # those whose name holds this

A fault is one changed line, in a copy of the tree: nothing here is touched. Only the tests that are meant to catch it
run. Exits with 1 if one is not caught, or cannot be planted any more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("tuner", "shapewright", "service", "worker", "migrations")
COPIED = (*PACKAGES, "benchmarks", "examples", "tests", "pyproject.toml", "alembic.ini")
CAUGHT = 1
"""pytest's exit status where tests failed: any other says that they could not be run."""
LIMIT_S = 900.0


@dataclass(frozen=True)
class Fault:
    """``old`` stands once in the package's files called ``file``; ``test``: a file's end of path, and words for -k."""

    name: str
    file: str
    old: str
    new: str
    test: str
    words: str = ""


FAULTS = (
    Fault(
        "code: the last row of a product is left out",
        "tuner/schedule/**/nest.py",
        "rest = I.Bind(self.m - row)",
        "rest = I.Bind(self.m - row - 1)",
        "contract/test_rule.py",
        "code_computes and (x86_contraction or x86_grouped)",
    ),
    Fault(
        "code: surplus rows of a tile are read past the end",
        "tuner/schedule/**/readers.py",
        "return [bound(tirx.min(each, last)) for each in index]",
        "return [bound(each) for each in index]",
        "schedule/test_golden.py",
    ),
    Fault(
        "code: totals that wait are given up for those of the next tile",
        "tuner/schedule/**/matrices.py",
        "each = bound(tirx.floordiv(turns + i64(height - 1), turns))",
        "each = bound(tirx.floordiv(i64(height), turns))",
        "product/test_amx.py",
        "ragged_rows and bytes",
    ),
    Fault(
        "code: the last part of k is not added",
        "tuner/schedule/**/parts.py",
        "for part in range(int(self.sums.shape[0]))",
        "for part in range(int(self.sums.shape[0]) - 1)",
        "product/test_parts.py",
        "dense-int8",
    ),
    Fault(
        "theory: a ragged rest of rows costs what whole tiles cost",
        "tuner/schedule/**/estimate.py",
        'rest = np.where(self.of["tail"] > 0, self.rest,',
        'rest = np.where(self.of["tail"] > 1, self.rest,',
        "schedule/test_golden.py",
        "x86_contraction or x86_gathered",
    ),
    Fault(
        "space: a choice that an axis does not have is legal",
        "tuner/schedule/**/space.py",
        "if chosen[axis.name] not in axis.choices:",
        "if axis.name not in chosen:",
        "schedule/test_space.py",
    ),
    Fault(
        "dispatcher: the boundary belongs to the other side",
        "tuner/library/**/dispatcher.py",
        "tree.then if feature(tree.dim, dims) <= tree.at_most else",
        "tree.then if feature(tree.dim, dims) < tree.at_most else",
        "library/test_dispatcher.py",
    ),
    Fault(
        "selection: kernels without use are chosen",
        "tuner/library/**/selection.py",
        "if gains[pick] < WORTH_RELATIVE:",
        "if gains[pick] < 0:",
        "library/test_selection.py",
    ),
    Fault(
        "verification: inputs may be written to",
        "tuner/measure/**/verify.py",
        "if not np.array_equal(bits(operand.array), bits(given)):",
        "if operand.array.shape != given.shape:",
        "measure/**/test_verify.py",
    ),
    Fault(
        "guard region: nobody looks before the start",
        "tuner/measure/**/guarded.py",
        'for name, guard in (("before the start", self.before[::-1]), ("past the end", self.after)):',
        'for name, guard in (("past the end", self.after),):',
        "measure/**/test_verify.py",
    ),
    Fault(
        "search: what is being measured is suggested again",
        "tuner/search/**/theory_first.py",
        "return self._measured.tried | self._pending | self._wrong",
        "return self._measured.tried | self._wrong",
        "contract/test_policy.py",
        "being_measured",
    ),
    Fault(
        "cost model: models learn the opposite of what was missed",
        "tuner/search/**/residual.py",
        "label, weight = targets - self._constant,",
        "label, weight = self._constant - targets,",
        "contract/test_cost_model.py",
    ),
    Fault(
        "leases: who lost a job extends it",
        "tuner/storage/**/leases.py",
        "jobs.c.id == lease.job.id, jobs.c.epoch == lease.epoch, jobs.c.state",
        "jobs.c.id == lease.job.id, jobs.c.state",
        "contract/test_storage_leases.py",
    ),
    Fault(
        "cursor: the last page says that there is more",
        "tuner/storage/**/cursors.py",
        "if len(rows) > limit else None",
        "if len(rows) >= limit else None",
        "contract/test_storage.py",
    ),
    Fault(
        "idempotency: a key serves for another body",
        "tuner/storage/**/jobs.py",
        "if canonical(row.spec) != canonical(spec.source):",
        "if not row.spec:",
        "contract/test_storage.py",
    ),
    Fault(
        "migrations: an index is left out",
        "migrations/versions/0004_login_tokens.py",
        'op.create_index("ix_login_tokens_api_key_id", "login_tokens", ["api_key_id"])',
        "pass",
        "storage/**/test_migrations.py",
        "index or schema_is_the_one",
    ),
    Fault(
        "scopes: a key may do what it was not given",
        "service/access/scopes.py",
        "if not key.allows(scope):",
        "if not key.scopes:",
        "service/access/test_scopes.py",
    ),
    Fault(
        "bounds: an idempotency key of any length",
        "service/jobs/service.py",
        "(0 < len(key) <= MAX_IDEMPOTENCY_KEY and",
        "(0 < len(key) and",
        "service/test_jobs.py",
    ),
    Fault(
        "worker: waits for the database do not grow",
        "worker/**/retry.py",
        "wait_s = min(wait_s * 2, LONGEST_WAIT_S)",
        "wait_s = min(wait_s, LONGEST_WAIT_S)",
        "worker/**/test_retry.py",
    ),
    Fault(
        "budget: what others were promised counts as left",
        "worker/**/split.py",
        "budget.trials - sum(each.trials or 0 for each in reserved)",
        "budget.trials - len(reserved)",
        "worker/**/test_split.py",
    ),
    Fault(
        "client: a stream of events begins at the first again",
        "shapewright/client*.py",
        '"Last-Event-ID": str(after)',
        '"Last-Event-ID": str(0)',
        "shapewright/test_client.py",
    ),
    Fault(
        "snapshot: a library of a smaller range is taken",
        "shapewright/snapshot/reading.py",
        "covering = [entry for entry in there if choice.covers(entry.made_for, ranges)]",
        "covering = list(there)",
        "shapewright/snapshot/test_reading.py",
    ),
    Fault(
        "snapshot: a file that was exchanged is taken",
        "shapewright/snapshot/reading.py",
        "if hashlib.sha256(content).hexdigest() != digest:",
        "if not digest:",
        "shapewright/snapshot/test_reading.py",
        "exchanged",
    ),
    Fault(
        "C library: a negative size is taken",
        "shapewright/c_library/runtime.c",
        "if (value >= 0 && value <= SW_MAX_SIZE) return",
        "if (value <= SW_MAX_SIZE) return",
        "c_library/test_functions.py",
    ),
    Fault(
        "torch: operands that are copied are not told of",
        "shapewright/torch/graphs.py",
        "if not tensor.constant and operand.fold is None and not self._is_in_a_row(operand)",
        "if tensor.constant and not self._is_in_a_row(operand)",
        "torch/test_backend.py",
        "copied",
    ),
    Fault(
        "models: a norm is folded with another epsilon",
        "shapewright/models/fusing.py",
        'eps = float(node.attrs["eps"])',
        'eps = 10 * float(node.attrs["eps"]) + 0.1',
        "torch/test_backend.py",
        "folded",
    ),
    Fault(
        "code: a phase of a transposed convolution lacks a tap",
        "tuner/schedule/**/phases.py",
        "count = max(-(-(size - least) // hit.step), 0)",
        "count = max((size - least) // hit.step, 0)",
        "conv/test_phases.py",
        "kernels_of_phases",
    ),
    Fault(
        "code: what is added to bytes for their sign is another number",
        "tuner/schedule/**/atoms.py",
        '{64: "avx512_vnni"}, _DPBUSD, offset=128)',
        '{64: "avx512_vnni"}, _DPBUSD, offset=127)',
        "matmul/test_dtypes.py",
        "default",
    ),
    Fault(
        "models: the layer of an encoder has the other activation",
        "shapewright/models/fast_paths.py",
        "functional.gelu(inner) if use_gelu else functional.relu(inner)",
        "functional.relu(inner) if use_gelu else functional.gelu(inner)",
        "torch/test_idioms.py",
        "fast_path_of_an_encoder_layer",
    ),
    Fault(
        "models: a mask of an encoder hides what it shows",
        "shapewright/models/fast_paths.py",
        "masked_fill(mask != 0, -math.inf)",
        "masked_fill(mask == 0, -math.inf)",
        "torch/test_idioms.py",
        "fast_path_of_an_encoder_layer",
    ),
    Fault(
        "torch: a row that is read with the others counts as independent",
        "tuner/program/language/rows.py",
        "if by_row.setdefault(tensor, is_by_row) != is_by_row:",
        "if by_row.setdefault(tensor, is_by_row) is None:",
        "language/test_rows.py",
    ),
    Fault(
        "torch: a part of a batch writes where the first one does",
        "shapewright/torch/native.c",
        "return place + rows->row * row_bytes;",
        "return place;",
        "torch/test_batches.py",
    ),
    Fault(
        "torch: threads compute their parts of a batch in one memory",
        "shapewright/torch/native.c",
        "rows->slot * rows->segment->bytes;",
        "0;",
        "torch/test_batches.py",
    ),
    Fault(
        "torch: a chain makes a call before what it reads",
        "shapewright/torch/chains.py",
        "if any(each in self.behind for each in tensors):",
        "if not tensors:",
        "torch/test_chains.py",
        "in_a_row",
    ),
    Fault(
        "code: words of a later block are weighed by those of the first",
        "tuner/schedule/**/tile.py",
        'words.of_row(room["weights"], [local], step - begin)',
        'words.of_row(room["weights"], [local], step)',
        "attention/test_words.py",
        "kernels_are_right",
    ),
    Fault(
        "code: a unit weighs a later block by the first",
        "tuner/schedule/**/units.py",
        "[tile.local, column - start]",
        "[tile.local, column]",
        "attention/test_words.py",
        "tiles_of_a_unit",
    ),
    Fault(
        "search: a slower kernel becomes the centre of a descent",
        "tuner/search/**/droplet.py",
        "return one < other + math.log(1 - self._threshold)",
        "return one > other + math.log(1 - self._threshold)",
        "policy/test_droplet.py",
    ),
    Fault(
        "sandbox: a candidate opens as many files as it likes",
        "tuner/measure/**/confinement.py",
        "resource.RLIMIT_NOFILE: OPEN_FILES,",
        "",
        "sandbox/test_confinement.py",
        "open_files",
    ),
    Fault(
        "messages: what a search raises arrives as another error",
        "worker/remote/messages.py",
        "return error if is_same else SearchError",
        "return error if not is_same else SearchError",
        "contract/test_task_search.py",
        "messages",
    ),
    Fault(
        "runner: a crash is put down to the machine",
        "tuner/measure/**/rpc.py",
        "again.killed > session.killed",
        "again.killed >= session.killed",
        "contract/test_runner.py",
        "culprit and devices",
    ),
    Fault(
        "launcher: rows and columns of a matrix are exchanged",
        "tuner/library/gpu/source.py",
        "rows, columns = map(c_expression, matrix.shape)",
        "columns, rows = map(c_expression, matrix.shape)",
        "library/gpu/test_launching.py",
        "tree",
    ),
    Fault(
        "four bits: those of an element are joined the other way round",
        "tuner/schedule/packing.py",
        "bits.type(4 * number)",
        "bits.type(4 * (of.joined - 1 - number))",
        "schedule/test_layout.py",
        "four_bits",
    ),
    Fault(
        "four bits: pieces of a weight that is unpacked change places",
        "shapewright/models/computed.py",
        "DimExpr.of(own[0][1]) + which * steps.pop()",
        "DimExpr.of(own[-1][1]) - which * steps.pop()",
        "torch/test_unpacked_weights.py",
        "exported",
    ),
    Fault(
        "GPU: a kernel that spills is served",
        "tuner/library/gpu/candidate.py",
        "if cubin.spilled_bytes:",
        "if cubin.spilled_bytes < 0:",
        "library/gpu/test_candidate.py",
        "refused",
    ),
    Fault(
        "GPU: trials that no device can measure are accepted",
        "tuner/program/job/jobspec.py",
        "if target is None or spec.budget.trials == 0:",
        "if target is None or spec.budget.trials != 1:",
        "job/test_jobspec.py",
        "theory_alone",
    ),
    Fault(
        "launcher: kernels run on the default stream",
        "tuner/library/gpu/calls.c",
        "code->shared, call->stream, parameters, NULL",
        "code->shared, NULL, parameters, NULL",
        "library/gpu/test_launching.py",
        "stream",
    ),
    Fault(
        "code: the vectors that a thread spills lie across cache lines",
        "tuner/schedule/**/shares.py",
        "        align_spills()",
        "        pass",
        "matmul/test_turns.py",
        "cache_lines",
    ),
    Fault(
        "code: the last accumulators of a row are left out",
        "tuner/schedule/**/reading.py",
        "for number in range(count // 2):",
        "for number in range(max(count // 2 - 1, 1)):",
        "rows/test_kernels.py",
        "dynamic_rows",
    ),
    Fault(
        "service: a process that died is not started again",
        "service/processes.py",
        "if now >= self._due:",
        "if now >= self._due + 1e9:",
        "service/test_processes.py",
        "replaced",
    ),
    Fault(
        "rows: a device that cannot be read takes the others with it",
        "tuner/storage/**/devices.py",
        'return tuple(readable("device", device_of, rows))',
        "return tuple(map(device_of, rows))",
        "service/test_unreadable_rows.py",
    ),
    Fault(
        "GPU: the next candidate gets a context that is lost",
        "tuner/measure/device/bench.py",
        "self.is_over = self.is_over or self._place.is_lost()",
        "self.is_over = False",
        "measure/gpu/test_device.py",
        "lost",
    ),
    Fault(
        "GPU: what surrounds operands is not copied back",
        "tuner/measure/gpu/place.py",
        "self._driver.read(operand.region.ctypes.data, address, operand.region.nbytes)",
        "self._driver.read(operand.array.ctypes.data, address + operand.before.nbytes, operand.array.nbytes)",
        "contract/test_device_runner.py",
        "wrongly and gpu",
    ),
    Fault(
        "GPU: L2 is not written over",
        "tuner/measure/gpu/place.py",
        "FLUSHED = 2\n",
        "FLUSHED = 1\n",
        "measure/gpu/test_device.py",
        "l2",
    ),
    Fault(
        "exported: a size beyond the range of its dim is taken",
        "shapewright/torch/exported_inputs.py",
        "allowed.lower <= its <= allowed.upper",
        "allowed.lower <= its",
        "torch/test_exported.py",
        "refused",
    ),
    Fault(
        "exported: frozen programs of one architecture share their weights",
        "shapewright/torch/exported.py",
        "next(_numbers) if freeze else 0",
        "int(freeze)",
        "torch/test_exported.py",
        "architecture",
    ),
    Fault(
        "packed constants: a page goes that a neighbour lies in, too",
        "shapewright/pages.py",
        "start + -start % mmap.PAGESIZE",
        "start - start % mmap.PAGESIZE",
        "shapewright/test_pages.py",
        "",
    ),
)


def _one(root: Path, pattern: str, text: str = "") -> Path:
    """The file of that pattern which holds ``text`` once."""
    found = [path for path in root.glob(pattern) if not text or path.read_text().count(text) == 1]
    if len(found) != 1:
        raise SystemExit(f"{pattern}: {len(found)} files hold the line to change; bring tests/planted.py up to date")
    return found[0]


def places(root: Path, fault: Fault) -> tuple[Path, Path]:
    """The file that is changed, and that of the test. Raises SystemExit where there is none."""
    return _one(root, fault.file, fault.old), _one(root, f"tests/**/{fault.test}")


def is_caught(root: Path, fault: Fault) -> bool:
    """Whether the test fails with the fault in ``root``, which is as before afterwards."""
    at, test = places(root, fault)
    whole = at.read_text()
    at.write_text(whole.replace(fault.old, fault.new))
    line = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not soak", "-n", "0", "-p", "no:cacheprovider"]
    selected = ["-k", fault.words] if fault.words else []
    # A file changed twice within a second is taken for what was compiled of it before.
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(
            [*line, str(test), *selected], cwd=root, env=environment, timeout=LIMIT_S, check=False, capture_output=True
        )
    finally:
        at.write_text(whole)
    return ran.returncode == CAUGHT


def copy_of_the_tree(to: Path) -> None:
    for name in COPIED:
        if (ROOT / name).is_dir():
            # With what is compiled: of all but the changed file it stays true.
            shutil.copytree(ROOT / name, to / name)
        else:
            shutil.copy(ROOT / name, to / name)


def main(words: list[str]) -> int:
    missed = []
    with tempfile.TemporaryDirectory(prefix="shapewright-planted-") as folder:
        copy_of_the_tree(Path(folder))
        for fault in FAULTS:
            if all(word in fault.name for word in words):
                caught = is_caught(Path(folder), fault)
                print(f"{'caught' if caught else 'MISSED'}  {fault.name}", flush=True)
                missed += [] if caught else [fault.name]
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
