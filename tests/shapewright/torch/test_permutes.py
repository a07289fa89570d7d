"""Images whose channels come last from one call to the next: nothing is transposed between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx, nn

from shapewright.torch.chain import Chain
from shapewright.torch.permutes import cancel_permutes
from shapewright.torch.transposes import Transpose
from tests.shapewright.torch.replacing import Replacing

pytestmark = pytest.mark.usefixtures("made")
CHANNELS, SIDE = 8, 6
silu = nn.functional.silu


class Norm(nn.LayerNorm):  # type: ignore[misc]
    """Over the channels of images that have them first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def channelwise(width: int = CHANNELS, size: int = 3) -> nn.Conv2d:
    return nn.Conv2d(width, width, size, padding=size // 2, groups=width)


class Residual(nn.Module):  # type: ignore[misc]
    """A block in the form of ConvNeXt: its residual stream has channels first."""

    def __init__(self, *, pointwise: bool) -> None:
        super().__init__()
        self.mix, self.norm, self.second = channelwise(size=5), nn.LayerNorm(CHANNELS), Norm(CHANNELS)
        self.gamma = nn.Parameter(torch.rand(CHANNELS))
        one = nn.Conv2d(CHANNELS, 16, 1), nn.Conv2d(16, CHANNELS, 1)
        self.up, self.down = one if pointwise else (nn.Linear(CHANNELS, 16), nn.Linear(16, CHANNELS))
        self.pointwise = pointwise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.mix(x)
        if self.pointwise:
            y = self.down(nn.functional.gelu(self.up(self.second(y))))
        else:
            y = self.down(nn.functional.gelu(self.up(self.norm(y.permute(0, 2, 3, 1))))).permute(0, 3, 1, 2)
        return x + self.gamma.reshape(1, -1, 1, 1) * y


def staged(*, pointwise: bool) -> nn.Module:
    """Patches, blocks, patches of these, a block, and the mean of all places."""
    return nn.Sequential(
        nn.Conv2d(3, CHANNELS, 2, stride=2), Norm(CHANNELS), Residual(pointwise=pointwise),
        Residual(pointwise=pointwise), Norm(CHANNELS), nn.Conv2d(CHANNELS, CHANNELS, 2, stride=2),
        Residual(pointwise=pointwise), nn.AvgPool2d(3), nn.Flatten(1), nn.Linear(CHANNELS, 5),
    )  # fmt: skip


class Tokens(nn.Module):  # type: ignore[misc]
    """Windows over tokens that are looked at as an image, as in SegFormer."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.mix, self.down = nn.Linear(CHANNELS, 12), channelwise(12), nn.Linear(12, CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x)
        batch, count, width = y.shape
        y = self.mix(y.transpose(1, 2).reshape(batch, width, SIDE, count // SIDE)).flatten(2).transpose(1, 2)
        return self.down(nn.functional.gelu(y))


class Patches(nn.Module):  # type: ignore[misc]
    """Rows of patches: of an image as in ViT, then of these as in PVT."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, CHANNELS, 2, stride=2), nn.Conv2d(CHANNELS, CHANNELS, 3, stride=3)
        self.norm, self.linear = nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.norm(self.first(x).flatten(2).transpose(1, 2))
        batch, count, width = rows.shape
        image = self.linear(rows).transpose(1, 2).reshape(batch, width, SIDE, count // SIDE)
        return self.linear(self.norm(self.second(image).flatten(2).transpose(1, 2)))


class Words(nn.Module):  # type: ignore[misc]
    """Windows over words, as in Conformer."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(CHANNELS, 12), nn.Linear(12, CHANNELS)
        self.mix = nn.Conv1d(12, 12, 5, padding=2, groups=12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(silu(self.mix(self.up(x).transpose(1, 2))).transpose(1, 2))


class Pooled(nn.Module):  # type: ignore[misc]
    """Pooling in the place of windows with weights, in the form of PoolFormer, with a norm of inference."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(CHANNELS, 12), nn.Linear(12, CHANNELS), nn.BatchNorm2d(12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x).permute(0, 3, 1, 2)
        y = self.norm(nn.functional.avg_pool2d(nn.functional.pad(y, (1, 1, 1, 1)), 3, 1)) - y
        y = nn.functional.max_pool2d(y, 2, ceil_mode=True)
        return self.down(y.permute(0, 2, 3, 1))


def images(batch: int) -> torch.Tensor:
    return torch.rand(batch, 3, 4 * 3, 4 * 3)


def words(batch: int) -> torch.Tensor:
    return torch.rand(batch, SIDE * 5, CHANNELS)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "ConvNeXt": (lambda: staged(pointwise=False), images),
    "ConvNeXt, convolutions in the place of products": (lambda: staged(pointwise=True), images),
    "SegFormer": (Tokens, words),
    "patches": (Patches, images),
    "Conformer": (Words, words),
    "pooling": (Pooled, lambda batch: torch.rand(batch, SIDE, SIDE + 1, CHANNELS)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rest", ["eager", "inductor"])
def test_nothing_is_transposed_between_calls(
    rest: str, name: str, replacing: Replacing, made: dict[str, Chain]
) -> None:
    new, given = CASES[name]
    replacing.check(new().eval(), given(3), rest=rest)
    (chain,) = made.values()
    assert not any(isinstance(each, Transpose) for each in chain.calls)
    assert not replacing.report.kept, str(replacing.report)
    assert not any(each.copies for each in replacing.report.replaced), str(replacing.report)


def test_images_that_a_window_of_all_channels_reads_have_them_first(
    replacing: Replacing, made: dict[str, Chain]
) -> None:
    """What a norm between two of them reads and gives is transposed."""
    model = nn.Sequential(nn.Conv2d(3, CHANNELS, 3), Norm(CHANNELS), nn.Conv2d(CHANNELS, CHANNELS, 3)).eval()
    replacing.check(model, images(2))
    assert "layout=nhwc" not in str(replacing.report)
    (chain,) = made.values()
    assert sum(isinstance(each, Transpose) for each in chain.calls) == 2


# -- the graph itself -------------------------------------------------------------------------------------------------
aten = torch.ops.aten


def cancelled(shape: Sequence[int], *steps: Sequence[int]) -> tuple[list[str], torch.Tensor, torch.Tensor]:
    """What is left of a graph of permutes and views, in turns; what it computes, and what it computed before."""
    graph = fx.Graph()
    node, x = graph.placeholder("x"), torch.arange(math.prod(shape)).reshape(list(shape))
    node.meta["val"] = value = x
    for number, step in enumerate(steps):
        is_view = bool(number % 2)
        node = graph.call_function(aten.view.default if is_view else aten.permute.default, (node, list(step)))
        node.meta["val"] = value = value.reshape(list(step)) if is_view else value.permute(list(step))
    graph.output(node)
    cancel_permutes(graph)
    graph.lint()
    names = [each.target.overloadpacket.__name__ for each in graph.nodes if each.op == "call_function"]
    # Views of values that do not lie in a row are copies here.
    for each in graph.find_nodes(op="call_function", target=aten.view.default):
        each.target = aten.reshape.default
    return names, fx.GraphModule(torch.nn.Module(), graph)(x), value


@pytest.mark.parametrize(
    ("shape", "steps", "left"),
    [
        ((2, 3, 4), ([0, 2, 1], [2, 4, 3], [0, 2, 1]), ["reshape"]),
        ((2, 12, 5), ([0, 2, 1], [2, 5, 3, 4], [0, 2, 3, 1]), ["reshape"]),
        ((2, 3, 4, 5), ([0, 3, 1, 2], [2, 5, 12], [0, 2, 1]), ["reshape"]),
        ((2, 3, 4, 5), ([0, 3, 1, 2], [2, 15, 4]), ["permute", "view"]),
        ((2, 3, 4), ([0, 2, 1],), ["permute"]),
    ],
)
def test_permutes_that_undo_one_another_are_gone(
    shape: tuple[int, ...], steps: tuple[list[int], ...], left: list[str]
) -> None:
    names, found, right = cancelled(shape, *steps)
    assert names == left
    assert torch.equal(found, right)


@st.composite
def paths(draw: st.DrawFn) -> tuple[list[int], tuple[list[int], ...]]:
    """Sizes, and permutes and views of other sizes in turns."""
    shape = sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4))
    steps = []
    for _ in range(draw(st.integers(1, 3))):
        steps.append(order := draw(st.permutations(range(len(sizes)))))
        sizes = [sizes[axis] for axis in order]
        cut = draw(st.integers(0, len(sizes) - 1))
        joined = [*sizes[:cut], math.prod(sizes[cut : cut + 2]), *sizes[cut + 2 :]]
        parted = [*sizes[:cut], *([2, 2] if sizes[cut] == 4 else [1, sizes[cut]]), *sizes[cut + 1 :]]
        steps.append(sizes := draw(st.sampled_from([joined, parted])))
    return shape, tuple(steps)


@given(paths())
def test_values_stay_the_same(path: tuple[list[int], tuple[list[int], ...]]) -> None:
    shape, steps = path
    _, found, right = cancelled(shape, *steps)
    assert torch.equal(found, right)
