"""Tuned modules give what PyTorch's own give, whoever transforms, casts or traces them, and whatever tensors come."""

from __future__ import annotations

import functools
import io
import itertools
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.utils import parametrizations, prune
from torch.testing._internal.two_tensor import TwoTensor

import shapewright as sw
from shapewright.torch import tuned_module
from shapewright.torch.optimizing import SWAPS
from tests.shapewright.libraries import save_library
from tests.shapewright.torch.models import HEADS, INNER, WIDTH
from tests.shares import diagonal
from tuner.program.language.workload import ShapeVar

Model = Callable[..., Any]
M = ShapeVar("M", range(1, 33))


def same(ours: Any, theirs: Any) -> bool:
    """Values, dtypes, strides, and whether a gradient is wanted."""
    if isinstance(ours, tuple | list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if not isinstance(ours, torch.Tensor):
        return bool(ours == theirs)
    if ours.is_nested:
        return same(ours.unbind(), theirs.unbind())
    facts = [(each.shape, each.dtype, each.stride(), each.requires_grad) for each in (ours, theirs)]
    bound = 3e-2 if ours.dtype in (torch.bfloat16, torch.float16) else 1e-4
    return facts[0] == facts[1] and torch.allclose(ours, theirs, rtol=bound, atol=bound, equal_nan=True)


@pytest.fixture(autouse=True)
def _pytorchs_warnings(quiet_process: None) -> None:
    """PyTorch warns of its own fast paths; those are no errors here."""
    warnings.simplefilter("default", UserWarning)


def layers() -> nn.Module:
    """Every kind of module in a row."""
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, batch_first=True, activation="gelu", dropout=0.0),
        nn.LayerNorm(WIDTH), nn.Softmax(-1),
    ).eval()  # fmt: skip


def _sum(model: Model) -> Model:
    return lambda x: model(x).pow(2).sum()


def _dual(model: Model, x: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(model(forward_ad.make_dual(x, x))))


def _cast(dtype: torch.dtype) -> Model:
    def run(model: Model, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype):
            twice = model(x), model(x)
            with torch.autocast("cpu", enabled=False):
                return *twice, model(x)

    return run


def _loaded(model: Model, x: torch.Tensor) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)(x)


class _Doubled(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    """What PyTorch's operators give, twice."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func in (functional.linear, functional.layer_norm) else result


def _overridden(model: Model, x: torch.Tensor) -> Any:
    with _Doubled():
        return model(x)


def _two(model: Model, x: torch.Tensor) -> Any:
    result = model(TwoTensor(x, 2 * x))
    return result.a, result.b


def _jagged(model: Model, x: torch.Tensor) -> Any:
    return model[0](torch.nested.nested_tensor([x[0], x[1][:2]], layout=torch.jagged)).values()  # type: ignore[index]


def _nested(model: Model, x: torch.Tensor) -> Any:
    return model(torch.nested.nested_tensor([x[0], x[1][:2]]))


TRANSFORMS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "func.grad": lambda f, x: torch.func.grad(_sum(f))(x),
    "vjp": lambda f, x: torch.func.vjp(f, x)[1](x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "hessian": lambda f, x: torch.func.hessian(_sum(f))(x[:1, :1]),
    "linearize": lambda f, x: torch.func.linearize(f, x)[1](x),
    "vmap": lambda f, x: torch.func.vmap(lambda z: f(z[None]))(x),
    "vmap of grad": lambda f, x: torch.func.vmap(torch.func.grad(lambda z: _sum(f)(z[None])))(x),
    "functionalize": lambda f, x: torch.func.functionalize(f)(x),
    "dual tensors": _dual,
    "bfloat16 autocast": _cast(torch.bfloat16),
    "float16 autocast": _cast(torch.float16),
    "a mode of torch.overrides": _overridden,
    "a subclass": _two,
    "nested": _nested,
    "jagged": _jagged,
    "transposed": lambda f, x: f(x.transpose(0, 1).contiguous().transpose(0, 1)),
    "strided": lambda f, x: f(torch.stack([x, x], -1)[..., 0]),
    "expanded": lambda f, x: f(x[:1].expand(x.shape)),
    "empty": lambda f, x: f(x[:0]),
    "pickled": _loaded,
}
SILENT = ("strided", "expanded", "empty", "pickled", "transposed")
"""Where libraries may run."""


@pytest.mark.parametrize(("name", "is_recording"), diagonal(TRANSFORMS, [True, False], every=2))
def test_the_result_is_pytorchs_and_a_fallback_is_told_once(libraries: Path, name: str, is_recording: bool) -> None:
    model, x = layers(), torch.randn(2, 3, WIDTH)
    tuned, transform = sw.torch.optimize(model, libraries), TRANSFORMS[name]
    with torch.set_grad_enabled(is_recording):
        theirs = _attempt(transform, model, x)
        if name not in SILENT:
            with pytest.warns(UserWarning, match="shapewright: .*PyTorch's own"):
                ours = _attempt(transform, tuned, x)
            assert 1 <= len(sw.torch.report(tuned).notes) <= 2
            assert same(_attempt(transform, tuned, x), theirs)
        elif not is_recording:
            ours = _attempt(transform, tuned, x)
        else:
            return
    assert same(ours, theirs)


def _attempt(transform: Callable[[Any, torch.Tensor], Any], model: Model, x: torch.Tensor) -> Any:
    """Its result, or the kind of error that PyTorch has for it: its fast path has no derivatives."""
    try:
        return transform(model, x)
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        return type(error).__name__


def test_autocast_chooses_the_dtype(libraries: Path) -> None:
    tuned, x = sw.torch.optimize(nn.Linear(WIDTH, WIDTH), libraries), torch.randn(2, WIDTH)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), pytest.warns(UserWarning, match="autocast"):
        assert tuned(x).dtype is torch.bfloat16


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_torch_jit_takes_pytorchs_own_modules_and_leaves_the_model_tuned(libraries: Path) -> None:
    model, x = layers(), torch.randn(2, 3, WIDTH)
    tuned = sw.torch.optimize(model, libraries)
    kinds = [type(each) for each in tuned.modules()]
    with torch.no_grad():
        expected = model(x)
        assert same(torch.jit.script(tuned)(x), expected)
        assert same(torch.jit.script(tuned[0])(x), model[0](x))
        with pytest.warns(UserWarning, match="traces"):
            traced = torch.jit.trace(tuned, x)
        assert same(traced(torch.cat([x, x])), model(torch.cat([x, x])))
    assert [type(each) for each in tuned.modules()] == kinds
    assert "shapewright::call" not in str(traced.inlined_graph)


def test_torch_fx_leaves_tuned_modules_whole(libraries: Path) -> None:
    model, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Softmax(1), nn.Softmax(-1)).eval(), torch.randn(2, 3, WIDTH)
    traced = torch.fx.symbolic_trace(sw.torch.optimize(model, libraries))
    assert [node.op for node in traced.graph.nodes][1:4] == ["call_module"] * 3
    with torch.no_grad():
        assert same(traced(x), model(x))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_rms_norm_without_eps_has_that_of_float32(tmp_path: Path, dtype: str) -> None:
    for eps in {torch.finfo(torch.float32).eps, torch.finfo(getattr(torch, dtype)).eps}:
        save_library(tmp_path / str(eps), "rms_norm", {"m": M, "n": WIDTH, "eps": eps}, (M,), dtype=dtype)
    model = nn.RMSNorm(WIDTH, dtype=getattr(torch, dtype))
    tuned = sw.torch.optimize(model, tmp_path, strict=True)
    x = (torch.randn(3, WIDTH) * 1e-3).to(model.weight.dtype)
    with torch.no_grad():
        assert same(tuned(x), functional.rms_norm(x, (WIDTH,), model.weight))


@pytest.mark.parametrize("is_last", ["images", "weights"])
def test_a_convolution_of_channels_last_gives_channels_last(tmp_path: Path, is_last: str) -> None:
    b, h, w = (ShapeVar(name, range(1, 9)) for name in "BHW")
    args = {"b": b, "c": 3, "h": h, "w": w, "o": 8, "r": 3, "s": 3, "stride": 2, "pad": 1}
    save_library(tmp_path, "conv2d", args, (b, h, w), ("bias",))
    model, x = nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.randn(2, 3, 8, 8)
    tuned = sw.torch.optimize(model, tmp_path, strict=True)
    if is_last == "images":
        x = x.to(memory_format=torch.channels_last)
    else:
        model.to(memory_format=torch.channels_last)
    with torch.no_grad(), pytest.warns(UserWarning, match="an order"):
        assert same(tuned(x), model(x))


PADDED = torch.tensor([[False] * 4, [False] * 2 + [True] * 2])
CAUSAL = torch.ones(4, 4, dtype=torch.bool).triu(1)
HIDDEN = torch.tensor([[True] * 4, [False] * 4])


def _masked(model: Model, x: torch.Tensor, **masks: torch.Tensor | None) -> Any:
    return model(x, **masks)


def _floats(mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(mask.shape).masked_fill(mask, float("-inf"))


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_an_encoder_with_masks_gives_what_its_fast_path_gives(
    libraries: Path, heads: int, batch_first: bool, norm_first: bool
) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, heads, INNER, batch_first=batch_first, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2).eval()
    tuned, x = sw.torch.optimize(model, libraries), torch.randn(2, 4, WIDTH)
    x = x if batch_first else x.transpose(0, 1).contiguous()
    with torch.no_grad():
        for padding in (None, PADDED, HIDDEN, PADDED.flip(1), _floats(PADDED), torch.randn(2, 4)):
            for mask in (None, CAUSAL, CAUSAL | True, _floats(CAUSAL), torch.randn(4, 4)):
                run = functools.partial(_masked, mask=mask, src_key_padding_mask=padding)
                assert same(_attempt(run, tuned, x), _attempt(run, model, x))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"add_zero_attn": True}, {"kdim": 16, "vdim": 24}])
def test_attention_gives_pytorchs_values_and_strides(
    libraries: Path, batch_first: bool, options: dict[str, Any]
) -> None:
    model = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, **options).eval()
    tuned, x = sw.torch.optimize(model, libraries), torch.randn(2, 4, WIDTH)
    keys, values = torch.randn(2, 4, model.kdim), torch.randn(2, 4, model.vdim)
    given = [(x, x, x), (x, keys, values), (x[0], keys[0], values[0])]
    if not batch_first:
        turned = x.transpose(0, 1).contiguous()
        given[:2] = [(turned,) * 3, (turned, keys.transpose(0, 1), values.transpose(0, 1))]
    if model.kdim != WIDTH:
        del given[0]
    masks = (None, CAUSAL, CAUSAL | True, torch.randn(4, 4))
    shown: tuple[dict[str, Any], ...] = ({"need_weights": False}, {}, {"average_attn_weights": False})
    for is_training, inputs, mask, weights in itertools.product((True, False), given, masks, shown):
        tuned.train(is_training)
        model.train(is_training)
        with torch.no_grad():
            assert same(*(each(*inputs, attn_mask=mask, **weights) for each in (tuned, model)))


def _normed(kind: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return kind(nn.Linear(WIDTH, WIDTH))


class _WithLock(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class _NoCopy(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("not this one")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


ODD: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "weight_norm": (lambda: _normed(nn.utils.weight_norm), "computed anew"),
    "spectral_norm": (lambda: _normed(nn.utils.spectral_norm), "computed anew"),
    "pruned": (lambda: _normed(lambda each: prune.l1_unstructured(each, "weight", 0.5)), "computed anew"),
    "parametrized": (lambda: _normed(parametrizations.weight_norm), "a subclass of Linear"),
    "lazy": (lambda: nn.LazyLinear(WIDTH), "a subclass of Linear"),
    "a lock in it": (_WithLock, "cannot be copied"),
    "no copy": (_NoCopy, "cannot be copied, and is shared with the model: not this one"),
    "scripted": (lambda: torch.jit.script(nn.Linear(WIDTH, WIDTH)), ""),
}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ODD)
def test_one_module_that_is_not_tuned_leaves_the_others_tuned(libraries: Path, name: str) -> None:
    make, reason = ODD[name]
    model = nn.Sequential(make(), nn.Linear(WIDTH, WIDTH)).eval()
    tuned, x = sw.torch.optimize(model, libraries), torch.randn(3, WIDTH)
    report = sw.torch.report(tuned)
    assert [each.where for each in report.replaced] == ["1"]
    assert reason in "; ".join(each.reason for each in report.kept)
    with torch.no_grad():
        assert same(tuned(x), model(x))


def test_a_module_that_no_workload_describes_stays(libraries: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1152, 1152, 3, groups=1152), nn.Flatten(), nn.Linear(1152, 5)).eval()
    tuned, x = sw.torch.optimize(model, libraries), torch.randn(2, 1152, 3, 3)
    assert sw.torch.report(tuned).kept[0].reason == "no library for this workload"
    with torch.no_grad():
        assert same(tuned(x), model(x))


def test_a_fault_of_ours_leaves_the_module_and_is_told(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise TypeError("a defect")

    model, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Softmax(-1)).eval(), torch.randn(2, WIDTH)
    monkeypatch.setitem(SWAPS, nn.Linear, (SWAPS[nn.Linear][0], broken))
    with pytest.warns(UserWarning, match="0 stays as it was: TypeError: a defect"):
        tuned = sw.torch.optimize(model, libraries)
    report = sw.torch.report(tuned)
    assert ([each.where for each in report.replaced], [each.where for each in report.kept]) == (["1"], ["0"])
    with pytest.raises(TypeError, match="a defect"):
        sw.torch.optimize(model, libraries, strict=True)
    monkeypatch.setattr(tuned_module, "call", broken)
    with torch.no_grad(), pytest.warns(UserWarning, match="a tuned call failed") as told:
        assert same(tuned(x), model(x))
        assert same(tuned(x), model(x))
    assert len(told) == 1


def test_wrong_arguments_raise_pytorchs_own_errors(libraries: Path) -> None:
    tuned = sw.torch.optimize(layers(), libraries)
    with torch.no_grad():
        for module in tuned:
            if not isinstance(module, nn.Softmax):
                with pytest.raises((RuntimeError, AssertionError)):
                    module(torch.randn(2, 3, WIDTH - 1))


def test_hooks_run_once_and_see_what_they_change(libraries: Path) -> None:
    model, x, ran = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, INNER)).eval(), torch.randn(3, WIDTH), []

    def before(module: nn.Module, given: Any) -> torch.Tensor:
        ran.append("before")
        return given[0] + 1

    def after(module: nn.Module, given: Any, result: torch.Tensor) -> torch.Tensor:
        ran.append("after")
        return result * 2

    model[0].register_forward_pre_hook(before)
    model[0].register_forward_hook(after)
    tuned = sw.torch.optimize(model, libraries)
    with torch.no_grad():
        ours = tuned(x)
        assert ran == ["before", "after"]
        assert same(ours, model(x))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_tuned_module_may_be_pruned_normed_and_replaced_in_part(libraries: Path) -> None:
    for change in (
        lambda each: prune.l1_unstructured(each, "weight", 0.5), nn.utils.weight_norm, parametrizations.weight_norm,
        lambda each: setattr(each, "bias", None), lambda each: each.register_forward_hook(lambda m, i, out: out * 2),
        lambda each: setattr(each, "weight", nn.Parameter(torch.ones(WIDTH, WIDTH))),
    ):  # fmt: skip
        model, x = nn.Sequential(nn.Linear(WIDTH, WIDTH)).eval(), torch.randn(3, WIDTH)
        tuned = sw.torch.optimize(model, libraries)
        with torch.no_grad():
            tuned(x)
            change(model[0])
            change(tuned[0])
            assert same(tuned(x), model(x))
        assert not any("failed" in note for note in sw.torch.report(tuned).notes)


def test_an_optimized_model_is_optimized_again(libraries: Path, tmp_path: Path) -> None:
    model, x = layers(), torch.randn(2, 3, WIDTH)
    once = sw.torch.optimize(model, tmp_path)
    twice = sw.torch.optimize(sw.torch.optimize(once, libraries), libraries)
    assert len(sw.torch.report(twice).replaced) == 10
    kinds = [type(each) for each in sw.torch.optimize(twice, tmp_path).modules()]
    assert kinds == [type(each) for each in model.modules()]
    with torch.no_grad():
        assert same(twice(x), model(x))


def test_what_is_compiled_has_derivatives(libraries: Path) -> None:
    model, x = nn.Linear(WIDTH, WIDTH).eval(), torch.randn(2, WIDTH)
    tuned = sw.torch.optimize(model, libraries)
    for transform in ("func.grad", "jvp", "vmap", "bfloat16 autocast"):
        torch._dynamo.reset()
        run = TRANSFORMS[transform]
        with torch.no_grad():
            ours = torch.compile(lambda z, run=run: run(tuned, z), backend="eager")(x)
            assert same(ours, run(model, x))


def test_weights_that_a_training_loop_wrote_are_packed_again(libraries: Path) -> None:
    model, x = nn.Linear(WIDTH, WIDTH).eval(), torch.randn(3, WIDTH)
    tuned = sw.torch.optimize(model, libraries)
    with torch.no_grad():
        tuned(x)
        tuned.train()
        tuned(x)
        tuned.weight.data.mul_(2.0)
        tuned.eval()
        assert same(tuned(x), model(x))
