"""One line in a PyTorch script: a model compiled with tuned libraries, for every length.

    python -m examples.pytorch_one_line --source URL_OR_DIRECTORY_OR_SNAPSHOT [--width 768] [--rest eager]

Without a library for its layers the model runs as PyTorch has it; the report says which is the case.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn

import shapewright as sw

LENGTHS = (1, 3, 17, 64, 100)
WORDS = 1000


def make_model(width: int) -> nn.Module:
    """A feed-forward block of a transformer on the embeddings of words."""
    torch.manual_seed(0)
    layers = [nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.LayerNorm(width)]
    return nn.Sequential(nn.Embedding(WORDS, width), *layers).eval()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--source", help="the service of SHAPEWRIGHT_URL if left out")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--rest", default="inductor", choices=("inductor", "eager"), help="what runs the rest")
    options = parser.parse_args()
    model = make_model(options.width)

    # The one line.
    fast = torch.compile(
        model, backend="shapewright", dynamic=True, options={"source": options.source, "rest": options.rest}
    )

    worst = 0.0
    with torch.no_grad():
        for length in LENGTHS:
            words = torch.randint(0, WORDS, (2, length))
            worst = max(worst, (fast(words) - model(words)).abs().max().item())
    print(sw.torch.report())
    print(f"largest difference to PyTorch at lengths {', '.join(map(str, LENGTHS))}: {worst:.1e}")
    return 0 if worst < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
