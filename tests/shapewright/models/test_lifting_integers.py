"""Products of int8: what is lifted of models that are quantised dynamically, and what is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.export import Dim

from shapewright.models.lifted import Lifting
from tests.shapewright.models.checking import Formula, check_values, exported, labels, lifting_of
from tests.shapewright.models.quantised import perceptron, rows_of, wrapped

COUNT = Dim("m", min=1, max=64)
K, N = 12, 5


def bytes_of(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def lifted(function: Callable[..., Any], *tensors: torch.Tensor) -> Lifting:
    """What is made of a function of rows of int8, and of tensors that are new at every call; its values checked."""
    shapes = ({0: COUNT}, *[None] * len(tensors))
    program = exported(Formula(function), (bytes_of(3, K), *tensors), (shapes,))
    lifting = lifting_of(program)
    for size in (1, 7):
        check_values(program, lifting, (bytes_of(size, K), *tensors))
    return lifting


def test_layers_are_products_of_bytes_between_what_quantises_rows() -> None:
    program = exported(perceptron(), (rows_of(3, 2),), ({0: COUNT},))
    lifting = lifting_of(program)
    for size in (1, 5, 64):
        check_values(program, lifting, (rows_of(size, 2),))
    rows = ["abs + reduce_max + maximum + div", "div + round + clamp + cast"]
    first, second = "dense + cast + mul + mul + bias + gelu", "dense + cast + mul + mul"
    assert labels(lifting) == [*rows, first, *rows, second]
    assert not lifting.left
    for op in lifting.ops[2::3]:
        assert op.workload.constants == ("w",)
        assert dict(op.workload.dtypes)["x"] == dict(op.workload.dtypes)["w"] == "int8"
        (weight,) = (each for each in op.operands if each.tensor == "w")
        assert weight.view == ((0,), (1,)), "the constant is packed as it lies, [n, k]"


@pytest.mark.parametrize("lies_as", ["nk", "kn"])
def test_sums_alone_are_exact_integers(lies_as: str) -> None:
    weight = bytes_of(N, K) if lies_as == "nk" else bytes_of(K, N)

    def sums(x: torch.Tensor) -> torch.Tensor:
        return torch._int_mm(x, weight.t() if lies_as == "nk" else weight)

    lifting = lifted(sums)
    assert labels(lifting) == ["dense"]
    (op,) = lifting.ops
    assert (op.dtype, op.workload.outputs[0].dtype) == ("int32", "int32")
    assert next(each.view for each in op.operands if each.tensor == "w") == (
        ((0,), (1,)) if lies_as == "nk" else ((1,), (0,))
    )


def test_integers_are_computed_by_nobody_else() -> None:
    """A stage of floats would round sums above 2**24."""
    weight = bytes_of(N, K)
    for function in (lambda sums: sums + 3, lambda sums: sums * 2, torch.relu, lambda sums: sums.to(torch.int64)):
        lifting = lifted(lambda x, function=function: function(torch._int_mm(x, weight.t())))
        assert labels(lifting) == ["dense"]
        assert len(lifting.left) == 1


def test_sums_that_two_read_are_written_once() -> None:
    weight = bytes_of(N, K)

    def twice(x: torch.Tensor) -> Any:
        sums = torch._int_mm(x, weight.t())
        return sums, sums * 0.5

    lifting = lifted(twice)
    assert labels(lifting) == ["dense"]
    assert lifting.ops[0].dtype == "int32"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sums_become_floats_of_any_width(dtype: torch.dtype) -> None:
    weight, scale = bytes_of(N, K), torch.rand(N, dtype=dtype) / 128

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return torch._int_mm(x, weight.t()).to(dtype) * scale

    program = exported(Formula(scaled), (bytes_of(3, K),), (({0: COUNT},),))
    lifting = lifting_of(program)
    assert labels(lifting) == ["dense + cast + mul"]
    assert lifting.ops[0].workload.outputs[0].dtype == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize(
    ("clamped", "dtype"),
    [((-128, 128), torch.int8), ((-200, 127), torch.int8), ((-1, 127), torch.uint8), ((-128, 127), torch.int32)],
)
def test_floats_become_bytes_where_they_are_known_to_fit(clamped: tuple[int, int], dtype: torch.dtype) -> None:
    def cast(x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(torch.round(x * 0.5), *clamped).to(dtype)

    lifting = lifting_of(exported(Formula(cast), (torch.randn(3, K),), (({0: COUNT},),)))
    assert labels(lifting) == ["mul + round + clamp"]
    assert [left.op for left in lifting.left] == ["cast"]


@pytest.mark.parametrize(("clamped", "dtype"), [((-128, 127), torch.int8), ((3, 255), torch.uint8)])
def test_floats_that_were_clamped_to_bytes_become_these(clamped: tuple[int, int], dtype: torch.dtype) -> None:
    def cast(x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(torch.round(x * 50.0), *clamped).to(dtype)

    program = exported(Formula(cast), (torch.randn(3, K),), (({0: COUNT},),))
    lifting = lifting_of(program)
    assert labels(lifting) == ["mul + round + clamp + cast"]
    check_values(program, lifting, (torch.randn(5, K),))


def test_rows_of_bytes_without_sign_are_multiplied_too() -> None:
    weight, rows = bytes_of(N, K), bytes_of(3, K).view(torch.uint8)
    program = exported(Formula(lambda x: torch._int_mm(x, weight.t())), (rows,), (({0: COUNT},),))
    lifting = lifting_of(program)
    assert labels(lifting) == ["dense"]
    check_values(program, lifting, (bytes_of(20, K).view(torch.uint8),))


def test_what_no_kernel_takes_is_left_with_the_reason() -> None:
    changing = lifted(torch._int_mm, bytes_of(K, N))
    assert not changing.ops
    assert "is new at every call" in changing.left[0].reason


def test_rows_without_sign_are_those_with_one() -> None:
    """As torchao multiplies where there is VNNI: 128 is added to each number, and what that adds is subtracted again.

    The largest number of a row is halfway between two bytes, so rows are compared behind libraries alone.
    """
    program = exported(wrapped(), (rows_of(3),), ({0: COUNT},))
    lifting = lifting_of(program)
    for size in (1, 5, 64):
        check_values(program, replace(lifting, ops=lifting.ops[:2] + lifting.ops[3:6:2]), (rows_of(size),))
    rows = [
        "reduce_max + maximum",
        "reduce + minimum + neg + maximum + div + maximum",
        "mul + round + clamp + cast",
    ]
    layers = ["dense + cast + mul + mul + bias + gelu", "dense + cast + mul + mul + bias"]
    assert labels(lifting) == [*rows, layers[0], *rows, layers[1]]
    assert {left.reason.partition(":")[0] for left in lifting.left} == {"a single pass over memory on its own"}


@pytest.mark.parametrize(
    ("added", "dtype", "subtracted"), [(127, torch.uint8, 127), (128, torch.uint8, 127), (128, torch.int8, 128)]
)
def test_other_sums_with_a_shift_are_left(added: int, dtype: torch.dtype, subtracted: int) -> None:
    weight = bytes_of(K, K)

    def shifted(x: torch.Tensor) -> torch.Tensor:
        sums = torch._int_mm((x.to(torch.int32) + added).to(dtype), weight)
        return sums - weight.sum(0, keepdim=True, dtype=torch.int32) * subtracted

    lifting = lifting_of(exported(Formula(shifted), (bytes_of(3, K),), (({0: COUNT},),)))
    assert "sub" not in {name.partition("_")[0] for op in lifting.ops for name in op.nodes}
    assert len(lifting.left) > 2


def test_a_number_everywhere_is_a_number_where_nothing_shows_the_difference() -> None:
    def shown(x: torch.Tensor) -> Any:
        zeros = torch.zeros_like(x)
        return torch.sin(x + zeros), torch.maximum(x, zeros).exp(), torch.clamp(x + zeros, -9, 9).to(torch.int8)

    lifting = lifting_of(exported(Formula(shown), (torch.randn(3, K),), (({0: COUNT},),)))
    # A sum with zeros makes zero of minus zero.
    assert labels(lifting) == ["add + sin", "maximum + exp", "clamp + cast"]
    assert not lifting.left


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lies_as", ["nk", "kn"])
def test_weights_of_bytes_stay_bytes_between_rows_of_floats(lies_as: str, dtype: torch.dtype) -> None:
    weight = bytes_of(N, K) if lies_as == "nk" else bytes_of(K, N)
    scale, bias = torch.rand(N, dtype=dtype) / 128, torch.randn(N, dtype=dtype)

    def scaled(x: torch.Tensor) -> torch.Tensor:
        cast = weight.to(dtype)
        return x @ (cast.t() if lies_as == "nk" else cast) * scale + bias

    program = exported(Formula(scaled), (torch.randn(3, K, dtype=dtype),), (({0: COUNT},),))
    lifting = lifting_of(program)
    if dtype is torch.float32:
        check_values(program, lifting, (torch.randn(7, K),))
    assert labels(lifting) == ["matmul + mul + bias"]
    assert not lifting.left
    (op,) = lifting.ops
    assert (dict(op.workload.dtypes)["w"], op.workload.constants) == ("int8", ("w",))
    assert next(each.fold for each in op.operands if each.tensor == "w") is None
