"""``python -m benchmarks.gpu --bundle DIR`` packs what a GPU host measures; ``--import DIR`` reads what came back.

On the host, which needs PyTorch, Triton and NumPy: ``cd DIR && python runner.py --out RESULTS --seconds 400``.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.bundle import write_bundle
from benchmarks.gpu.cases import blocks
from benchmarks.gpu.importing import document, summary
from tests.contract.rule_samples import SAMPLES
from tuner.program.job.build import workload_from_json
from tuner.program.language.workload import Workload

RIVALS = (
    "mm", "mm_tf32", "mm_kn", "bmm", "bmm_tf32", "linear_gelu", "linear_add", "compiled", "sdpa", "softmax",
    "layer_norm", "rms_norm", "copy", "conv", "conv_tf32", "conv_last", "by_expert", "grouped_mm", "whole", "int4pack",
    "silu_add", "transpose", "column_sum", "gemv", "depthwise", "max_pool", "flash",
)  # fmt: skip


def samples() -> Iterator[tuple[str, Workload]]:
    """The samples of the rules' contract suite, and in float16 those that name no dtype."""
    for rule, of_rule in SAMPLES.items():
        for title, sample in of_rule.items():
            yield f"{rule}/{title}", workload_from_json(sample)
            if sample.get("dtype", "float32") == "float32":
                yield f"{rule}/{title}/float16", workload_from_json({**sample, "dtype": "float16"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, help="a folder to write; what is in it goes")
    parser.add_argument("--parts", default="", help="of the bundle, with commas between; all if left out")
    parser.add_argument("--import", dest="results", type=Path, help="a folder that the runner wrote")
    parser.add_argument(
        "--json", type=Path, help="where the document of an import is written, packed if it ends in .gz"
    )
    options = parser.parse_args()
    if options.bundle is None and options.results is None:
        parser.error("give --bundle DIR or --import DIR")
    if options.bundle is not None:
        parts = set(filter(None, options.parts.split(",")))
        chosen = (block for block in blocks() if not parts or block.part in parts)
        made = write_bundle(options.bundle, chosen, samples())
        print(f"{len(made.blocks)} blocks, {len(made.samples)} samples, {made.count} modules in {options.bundle}")
    if options.results is not None:
        print("\n".join(summary(options.results, RIVALS)))
        if options.json is not None:
            text = json.dumps(document(options.results), separators=(",", ":")).encode()
            is_packed = options.json.suffix == ".gz"
            options.json.write_bytes(gzip.compress(text, mtime=0) if is_packed else text)


if __name__ == "__main__":
    main()
