"""Compiled with libraries, a function does what PyTorch alone does: writes, arguments, transforms, dtypes, strides."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import shapewright as sw
from shapewright.sources.finder import Finder
from shapewright.torch import graphs
from tests.shapewright.torch.replacing import Replacing, same
from tests.shares import chosen, diagonal, every

W = torch.linspace(-1, 1, 16 * 8).reshape(16, 8)
SQUARE = torch.linspace(-1, 1, 64).reshape(8, 8)


def x(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*(sizes or (5, 8))).to(dtype)


# -- transforms and gradients ---------------------------------------------------------------------------------------
def _loss(given: torch.Tensor) -> torch.Tensor:
    return functional.linear(given, W).tanh().square().sum()


def _grad_inside(given: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        leaf = given.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(_loss(leaf), leaf)
    return gradient


def _inside(transform: Callable[..., Any]) -> Callable[[torch.Tensor], Any]:
    def function(given: torch.Tensor) -> Any:
        return transform(_loss)(given)

    return function


TRANSFORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "grad": _inside(torch.func.grad),
    "grad_and_value": _inside(torch.func.grad_and_value),
    "vjp": lambda given: torch.func.vjp(lambda z: functional.linear(z, W), given)[1](torch.ones(5, 16))[0],
    "jvp": lambda given: torch.func.jvp(lambda z: functional.linear(z, W).tanh(), (given,), (given * 2,)),
    "vmap": _inside(torch.func.vmap),
    "vmap of grad": _inside(lambda loss: torch.func.vmap(torch.func.grad(loss))),
    "jacrev": _inside(torch.func.jacrev),
    "autograd.grad": _grad_inside,
}


@pytest.mark.parametrize("name", every(4, TRANSFORMS))
def test_transforms_inside_a_graph_are_those_of_eager(name: str, replacing: Replacing) -> None:
    replacing.check(TRANSFORMS[name], x(), replaced=0)


def test_a_transform_of_a_compiled_function_is_that_of_eager(replacing: Replacing) -> None:
    given = x()
    fast = replacing.compiled(_loss)
    with torch.no_grad():
        fast(given)
    same(torch.func.grad(fast)(given), torch.func.grad(_loss)(given))


# -- writes ---------------------------------------------------------------------------------------------------------
def _scaled_into(x: torch.Tensor, by: float) -> None:
    x.mul_(by)


@pytest.fixture
def scale_into() -> Iterator[Callable[[torch.Tensor, float], None]]:
    """An operator of somebody else that writes to its input, and says so in its schema alone."""
    with torch.library._scoped_library("acme", "DEF") as library:
        library.define("scale_into(Tensor(a!) x, float by) -> ()")
        library.impl("scale_into", _scaled_into, "CPU")
        torch.library.register_fake("acme::scale_into", lambda x, by: None, lib=library)
        yield torch.ops.acme.scale_into.default


@pytest.mark.parametrize("rest", chosen(["eager"], ["eager", "inductor"]))
def test_a_fused_call_stays_before_a_write_that_a_schema_tells(
    scale_into: Callable[..., None], replacing: Replacing, rest: str
) -> None:
    def function(given: torch.Tensor) -> torch.Tensor:
        hidden = functional.linear(given, W)
        scale_into(given, 3.0)
        return functional.relu(hidden) + given.sum()

    replacing.check(function, x(), rest=rest)


def _setitem(given: torch.Tensor) -> torch.Tensor:
    hidden = functional.linear(given, W)
    given[1:3] = 7.0
    return torch.relu(hidden) + functional.linear(given, W)


def _iadd(given: torch.Tensor) -> torch.Tensor:
    hidden = functional.linear(given, SQUARE)
    hidden += given
    return functional.relu(hidden)


def _view_written(given: torch.Tensor) -> torch.Tensor:
    hidden = functional.linear(given, SQUARE)
    hidden.t()[0].add_(100.0)
    return torch.relu(hidden)


def _and(given: torch.Tensor) -> torch.Tensor:
    mask = operator.and_(given > 0, given < 1)
    return functional.linear(given, W).relu() * mask.sum()


QUICK_WRITES = ("add_", "iadd", "setitem", "a view", "out=", "and_ is no write")
WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "add_": lambda given: (functional.linear(given, W).relu(), given.add_(1.0))[0],
    "iadd": _iadd,
    "setitem": _setitem,
    "a view": _view_written,
    "out=": lambda given: torch.relu(torch.add(functional.linear(given, W), 1.0, out=torch.empty(5, 16))),
    "and_ is no write": _and,
    "foreach": lambda given: (functional.linear(given, W).relu(), torch._foreach_mul_([given], 2.0))[0],
    "copy_": lambda given: (functional.linear(given, W).relu(), given.copy_(given.flip(0)))[0],
    "index_put_": lambda given: (
        functional.linear(given, W).relu(),
        given.index_put_((torch.tensor([1]),), torch.ones(8)),
    )[0],
}


@pytest.mark.parametrize("name", chosen(QUICK_WRITES, WRITES))
def test_what_is_written_in_place_is_written_where_eager_writes_it(name: str, replacing: Replacing) -> None:
    replacing.check(WRITES[name], x())


@pytest.mark.parametrize(
    "activation",
    every(
        3,
        [
            nn.ELU(inplace=True),
            nn.LeakyReLU(0.1, True),
            nn.Hardswish(True),
            nn.ReLU6(True),
            nn.SiLU(True),
            nn.Hardtanh(-1, 1, True),
        ],
    ),
)
def test_an_activation_in_place_is_seen_by_whoever_reads_its_input(activation: nn.Module, replacing: Replacing) -> None:
    first, second = nn.Conv2d(3, 4, 1).eval(), nn.Conv2d(4, 4, 1).eval()

    def function(given: torch.Tensor) -> torch.Tensor:
        hidden = first(given)
        return second(activation(hidden)) + hidden

    replacing.check(function, x(2, 3, 4, 4))


# -- arguments ------------------------------------------------------------------------------------------------------
class _Normed(nn.Module):  # type: ignore[misc]
    """A convolution, and a norm of inference whose further arguments come by keyword."""

    def __init__(self, *, weight: bool, bias: bool, **arguments: Any) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4)
        for place, tensor in enumerate((self.norm.running_mean, self.norm.running_var, *self.norm.parameters())):
            tensor.data.copy_(torch.linspace(0.5, 2.0 + place, 4))
        self.named = [name for name, wanted in (("bias", bias), ("weight", weight)) if wanted]
        self.arguments = arguments

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        named = {name: getattr(self.norm, name) for name in self.named}
        mean, var = self.norm.running_mean, self.norm.running_var
        return functional.batch_norm(
            running_var=var, running_mean=mean, input=self.conv(given), **named, **self.arguments
        )


@pytest.mark.parametrize(
    "arguments",
    [
        {"weight": True, "bias": True}, {"weight": True, "bias": False}, {"weight": False, "bias": True},
        {"weight": False, "bias": False, "eps": 0.5},
        {"weight": True, "bias": True, "training": False, "momentum": 0.9},
    ],
)  # fmt: skip
def test_a_norm_of_inference_by_keyword(arguments: dict[str, Any], replacing: Replacing) -> None:
    replacing.check(_Normed(**arguments).eval(), x(2, 3, 4, 4))
    assert "bias" in replacing.report.replaced[0].workload


IMAGE, ROWS = (2, 3, 4, 4), (5, 8)
BY_KEYWORD: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], Any]]] = {
    "linear": (ROWS, lambda given: functional.linear(bias=W[:, 0], weight=W, input=given)),
    "layer_norm": (
        ROWS,
        lambda given: functional.layer_norm(eps=0.5, bias=W[0], weight=W[1], normalized_shape=(8,), input=given),
    ),
    "addmm": (ROWS, lambda given: torch.addmm(mat2=SQUARE, mat1=given, input=given, beta=0.5, alpha=2.0)),
    "softmax": (ROWS, lambda given: torch.softmax(dim=-1, input=given)),
    "softmax by axis": (ROWS, lambda given: torch.softmax(given, axis=-1)),
    "softmax with a dtype": (ROWS, lambda given: given.softmax(-1, dtype=torch.float64)),
    "mean by axis": (ROWS, lambda given: given.mean(axis=-1, keepdims=True)),
    "sum by axis": (ROWS, lambda given: given.sum(axis=0, keepdims=True)),
    "amax by axis": (ROWS, lambda given: torch.amax(given, axis=(0,), keepdims=True)),
    "mean of nothing named": (ROWS, lambda given: given.mean(dim=[])),
    "sum with a dtype": (ROWS, lambda given: given.sum(-1, dtype=torch.float64)),
    "conv2d": (IMAGE, lambda given: functional.conv2d(stride=2, padding=1, weight=torch.ones(4, 3, 3, 3), input=given)),
    "gelu": (ROWS, lambda given: functional.gelu(functional.linear(given, W), approximate="tanh")),
    "div": (ROWS, lambda given: torch.div(functional.linear(given, W), 0.3, rounding_mode="floor").exp()),
    "round": (ROWS, lambda given: torch.round(functional.linear(given, W), decimals=1).exp()),
    "sub with alpha": (ROWS, lambda given: torch.sub(functional.linear(given, W), 2.0, alpha=3).exp()),
    "add with alpha": (
        ROWS,
        lambda given: torch.add(alpha=3, other=given, input=functional.linear(given, SQUARE)).exp(),
    ),
    "rsub": (ROWS, lambda given: torch.rsub(functional.linear(given, W), 2.0, alpha=3).exp()),
    "softplus": (ROWS, lambda given: functional.softplus(functional.linear(given, W), beta=2.0, threshold=1.0)),
    "celu": (ROWS, lambda given: functional.celu(functional.linear(given, W), alpha=2.0)),
    "selu": (ROWS, lambda given: functional.selu(functional.linear(given, W))),
    "clamp": (ROWS, lambda given: functional.linear(given, W).clamp(max=0.5, min=-0.25)),
    "clamp by a tensor": (ROWS, lambda given: functional.linear(given, W).clamp(min=W[:, 0])),
    "max_pool2d": (
        IMAGE,
        lambda given: functional.max_pool2d(padding=1, kernel_size=3, input=given, dilation=1, ceil_mode=True),
    ),
    "avg_pool2d": (IMAGE, lambda given: functional.avg_pool2d(given, 3, padding=1, count_include_pad=False, stride=2)),
    "attention": (
        (2, 2, 5, 8),
        lambda given: functional.scaled_dot_product_attention(scale=0.3, value=given, key=given * 2, query=given + 1),
    ),
    "attention, causal": (
        (2, 2, 5, 8),
        lambda given: functional.scaled_dot_product_attention(given, given, given, is_causal=True),
    ),
}


@pytest.mark.parametrize("name", every(4, BY_KEYWORD))
def test_arguments_mean_what_the_schema_says(name: str, replacing: Replacing) -> None:
    shape, function = BY_KEYWORD[name]
    replacing.check(function, x(*shape), replaced=0)


def test_a_softmax_without_an_axis(replacing: Replacing) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Implicit dimension choice")
        replacing.check(functional.softmax, x())


# -- dtypes and strides ---------------------------------------------------------------------------------------------
DTYPES: dict[str, Callable[[torch.Tensor], Any]] = {
    "a reinterpretation": lambda given: functional.linear(given, W.bfloat16()).view(torch.float16),
    "a cast": lambda given: functional.linear(given, W.bfloat16()).to(torch.float16),
    "to another's": lambda given: functional.linear(given, W.bfloat16()).type_as(W),
    "float()": lambda given: functional.linear(given, W.bfloat16()).float().exp(),
    "promotion": lambda given: functional.linear(given, W.bfloat16()) + torch.ones(16),
    "a norm in float32": lambda given: functional.rms_norm(given, (8,), W[0].bfloat16()),
}


@pytest.mark.parametrize("name", every(2, DTYPES))
def test_dtypes_are_those_of_eager(name: str, replacing: Replacing) -> None:
    replacing.check(DTYPES[name], x(dtype=torch.bfloat16), replaced=0)


def test_autocast_around_and_inside_a_compiled_function(replacing: Replacing) -> None:
    def inside(given: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return functional.linear(given, W).exp()

    def around(given: torch.Tensor) -> torch.Tensor:
        return functional.linear(given, W).exp()

    replacing.check(inside, x())
    with torch.autocast("cpu", torch.bfloat16):
        replacing.check(around, x())


CONV, SECOND = nn.Conv2d(3, 8, 3).eval(), nn.Conv2d(8, 8, 1, stride=2, groups=8).eval()
STRIDES: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], Any]]] = {
    "as_strided of what lies transposed": (
        (3, 4),
        lambda given: torch.as_strided((given.t() * 2).tanh(), (4, 3), (2, 1)),
    ),
    "a transposed output": ((4, 6), lambda given: (given.t() * 2).tanh()),
    "a view of a transposed value": ((4, 6), lambda given: (given.t() * 2).tanh().t().view(24)),
    "channels last": ((2, 3, 4, 4), lambda given: CONV(given.to(memory_format=torch.channels_last)).relu()),
    "every second place of an image": ((2, 8, 9, 9), lambda given: SECOND(given).relu()),
    "rows of an image": (
        (2, 8, 9, 9),
        lambda given: functional.layer_norm(SECOND(given).permute(0, 2, 3, 1), (8,)).permute(0, 3, 1, 2),
    ),
    "rows of a part of an image": (
        (2, 8, 6, 5),
        lambda given: functional.linear(given[..., 1:4].permute(0, 2, 3, 1).reshape(given.shape[0], 18, 8), W).relu(),
    ),
    "attention": ((2, 2, 5, 8), lambda given: functional.scaled_dot_product_attention(given, given, given)),
    "attention, and its strides asked": (
        (2, 2, 5, 8),
        lambda given: (y := functional.scaled_dot_product_attention(given, given, given)) * y.stride(1),
    ),
    "an output twice": ((5, 8), lambda given: (y := functional.linear(given, W).relu(), y.t(), y[1:])),
}


@pytest.mark.parametrize(("name", "rest"), diagonal(STRIDES, ["eager", "inductor"], every=4))
def test_outputs_lie_as_those_of_eager(name: str, rest: str, replacing: Replacing) -> None:
    shape, function = STRIDES[name]
    replacing.check(function, x(*shape), rest=rest)


def test_what_another_device_computes_is_left(replacing: Replacing) -> None:
    fast = replacing.compiled(lambda given: (given.to("meta") * 2).tanh())
    with torch.no_grad():
        assert fast(x()).is_meta


def test_what_may_be_empty_lies_as_in_eager(replacing: Replacing) -> None:
    """PyTorch's strides of what an operator makes are those of one row where there is none."""

    def doubled(given: torch.Tensor) -> torch.Tensor:
        return torch.relu(given * 2)

    replacing.check(doubled, x(30))
    with warnings.catch_warnings():
        # Three rows are the least that has a rest: no library is made for such a range, and that one serves.
        warnings.simplefilter("ignore")
        replacing.check(lambda given: doubled(given[3:]), x(6, 8, 5).permute(2, 1, 0))
    assert "the whole graph" not in [kept.where for kept in replacing.report.kept], str(replacing.report)


# -- numbers --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rest", chosen(["eager"], ["eager", "inductor"]))
def test_a_float_that_changes_at_every_call_is_no_new_graph(replacing: Replacing, rest: str) -> None:
    def function(given: torch.Tensor, factor: float) -> torch.Tensor:
        return functional.linear(given, W).relu() * factor

    fast, given = replacing.compiled(function, rest=rest), x()
    with torch.no_grad():
        fast(given, 1.5), fast(given, 2.5)
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        for number in range(20):
            same(fast(given, number + 0.25), function(given, number + 0.25))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before
    assert replacing.report.replaced


def test_a_tensor_that_is_written_out_in_a_model(replacing: Replacing) -> None:
    def function(given: torch.Tensor) -> torch.Tensor:
        return functional.linear(given, W).relu() * torch.tensor(0.3, dtype=torch.bfloat16)

    replacing.check(function, x())


def test_a_mask_by_the_least_number(replacing: Replacing) -> None:
    least = torch.finfo(torch.float32).min
    replacing.check(
        lambda given: torch.softmax(functional.linear(given, W) + (given[:, :1] > 0).float() * least, -1), x()
    )


def test_a_value_read_from_a_tensor(replacing: Replacing) -> None:
    def function(given: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        number = count.item()
        return functional.linear(given, W).relu() * number + torch.zeros(number).sum()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        replacing.check(function, x(), torch.tensor(3), replaced=0)


# -- our own faults -------------------------------------------------------------------------------------------------
SINGLE_VALUES: dict[str, Callable[[torch.Tensor], Any]] = {
    "scaled": lambda given: given.sum() * 2,
    "relu": lambda given: torch.relu(given.sum()),
    "normalised": lambda given: given / (given * given).sum().sqrt(),
    "softmax of one": lambda given: torch.softmax(given.sum(), 0),
}


@pytest.mark.parametrize("name", SINGLE_VALUES)
def test_single_values(name: str, replacing: Replacing) -> None:
    replacing.check(SINGLE_VALUES[name], x(), replaced=0)


@pytest.mark.parametrize(("where", "rest"), diagonal(["lifting", "searching"], ["eager", "inductor"], every=2))
def test_a_fault_of_ours_leaves_the_graph_to_pytorch(
    where: str, rest: str, replacing: Replacing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise AssertionError("an index is off")

    if where == "lifting":
        monkeypatch.setattr(graphs, "lift", broken)
    else:
        monkeypatch.setattr(Finder, "find", broken)
    given, fast = x(), replacing.compiled(_loss, rest=rest)
    with torch.no_grad(), pytest.warns(UserWarning, match="left to PyTorch: AssertionError: an index is off") as told:
        same(fast(given), _loss(given))
    assert len(told) == 1
    (kept,) = replacing.report.kept
    assert kept.where == "the whole graph"
    assert not replacing.report.replaced


def test_an_error_of_the_users_own_comes_out_as_it_does_without_us(replacing: Replacing) -> None:
    def function(given: torch.Tensor) -> torch.Tensor:
        return functional.linear(given, W) @ given

    with torch.no_grad(), pytest.raises(Exception, match="size"):
        replacing.compiled(function)(x())
    assert sw.torch.report() is not None


@pytest.mark.parametrize(("alpha", "beta", "added"), diagonal([1, -0.5], [0, 1, 2.5], [0.5, float("nan")], every=3))
def test_scaled_sums_of_products(alpha: float, beta: float, added: float, replacing: Replacing) -> None:
    keys, columns = torch.randn(3, 8, 7), torch.full((7, 5), added).t()

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scaled = {"alpha": alpha, "beta": beta}
        return torch.addmm(columns, x[0], W.t()[:, :7], **scaled), torch.baddbmm(columns[None], x, keys, **scaled)

    replacing.check(function, torch.randn(3, 5, 8), replaced=2)


def test_a_product_that_is_taken_no_times_is_not_read(replacing: Replacing) -> None:
    x = torch.full((5, 8), float("nan"))
    replacing.check(lambda x: torch.addmm(W[0, :7].expand(5, 7), x, W.t()[:, :7], alpha=0), x, replaced=0)


MIXED: dict[str, tuple[torch.dtype, torch.dtype, torch.dtype]] = {
    "of bfloat16, a bias of float32": (torch.bfloat16, torch.float32, torch.bfloat16),
    "of float32, a bias of float64": (torch.float32, torch.float64, torch.float32),
    "of bfloat16, statistics of float32": (torch.bfloat16, torch.bfloat16, torch.float32),
}


@pytest.mark.parametrize("name", MIXED)
def test_a_norm_behind_a_convolution_of_other_dtypes(name: str, replacing: Replacing) -> None:
    dtype, of_bias, of_norm = MIXED[name]
    norm = torch.nn.BatchNorm2d(6).eval().to(of_norm)
    weight, bias = torch.randn(6, 3, 3, 3).to(dtype), torch.randn(6).to(of_bias)
    replacing.check(
        lambda x: norm(functional.conv2d(x, weight, bias.to(x.dtype))), torch.randn(2, 3, 9, 9).to(dtype), replaced=0
    )
