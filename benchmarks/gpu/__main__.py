"""``python -m benchmarks.gpu --bundle DIR`` and ``--import DIR``: ``shapewright bundle``, for DietCode's products where
no job is named. ``--arch``, ``--choices``, ``--others`` and ``--seed`` are those of ``shapewright bundle pack``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from shapewright.cli.main import main as shapewright

DIETCODE = Path(__file__).parent / "jobs" / "dietcode.yaml"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--bundle", metavar="DIR", help="a new folder, or a bundle to write again")
    either.add_argument("--import", dest="results", metavar="DIR", help="a bundle with the host's results")
    parser.add_argument("--job", default=str(DIETCODE), help="what is searched; DietCode's suites if left out")
    options, others = parser.parse_known_args(argv)
    command = ["import", options.results] if options.results else ["pack", options.job, options.bundle]
    shapewright(["bundle", *command, *others])


if __name__ == "__main__":
    main()
