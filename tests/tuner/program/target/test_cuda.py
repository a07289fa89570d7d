"""GPUs as targets: named by instruction set or product, read from JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tuner.errors import InvalidInput
from tuner.program.target import Target
from tuner.program.target.cuda import ARCHITECTURES, PRODUCTS

H100 = {"kind": "cuda", "product": "h100"}
NUMBERS = Target.from_json(H100).to_json()["hardware"]


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_product_comes_back_from_json(product: str) -> None:
    target = Target.from_json({"kind": "cuda", "product": product})
    again = Target.from_json(json.loads(json.dumps(target.to_json())))
    assert again == target
    assert again.fingerprint == target.fingerprint
    assert target.gpu is not None
    assert target.mcpu == target.gpu.arch in ARCHITECTURES


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_an_architecture_stands_for_a_product_of_its_own(arch: str) -> None:
    gpu = Target.from_json({"kind": "cuda", "arch": arch}).gpu
    assert gpu is not None
    assert gpu.arch == arch
    assert gpu.architecture.block_shared_bytes < gpu.architecture.shared_bytes
    assert gpu.tensor_flops_s("float16") > gpu.tensor_flops_s("tf32") > 0
    assert gpu.tensor_flops_s("float64") == 0


def test_rates_are_those_of_the_data_sheets() -> None:
    """TFLOP/s, dense, at the clocks that NVIDIA gives them for."""
    a100, l4, rtx4090 = (PRODUCTS[name] for name in ("a100", "l4", "rtx4090"))
    assert a100.tensor_flops_s("float16") / 1e12 == pytest.approx(312, rel=0.01)
    assert a100.tensor_flops_s("tf32") / 1e12 == pytest.approx(156, rel=0.01)
    assert a100.fma_flops_s() / 1e12 == pytest.approx(19.5, rel=0.01)
    assert l4.tensor_flops_s("float16") / 1e12 == pytest.approx(121, rel=0.01)
    assert rtx4090.tensor_flops_s("float16") / 1e12 == pytest.approx(165, rel=0.01)
    assert rtx4090.fma_flops_s() / 1e12 == pytest.approx(82.6, rel=0.01)


@pytest.mark.parametrize(
    ("data", "field", "problem"),
    [
        ({"kind": "cuda"}, "target.arch", "neither its architecture nor its product"),
        ({"kind": "cuda", "arch": "sm_42"}, "target.arch", "'sm_42' is not known"),
        ({"kind": "cuda", "arch": 90}, "target.arch", "90 is not known"),
        ({"kind": "cuda", "product": "tpu"}, "target.product", "'tpu' is not known"),
        ({"kind": "cuda", "product": ["h100"]}, "target.product", "is not known"),
        (H100 | {"arch": "sm_80"}, "target.arch", "instructions of sm_90, not of sm_80"),
        (H100 | {"mcpu": "sm_90"}, "target", "'mcpu' is not a field"),
        (H100 | {"hardware": 7}, "target.hardware", "no description"),
        (H100 | {"hardware": NUMBERS | {"sms": 0}}, "target.hardware.sms", "out of range"),
        (H100 | {"hardware": NUMBERS | {"watts": True}}, "target.hardware.watts", "out of range"),
    ],
)
def test_what_is_wrong_is_named(data: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Target.from_json(data)
    assert refused.value.field == field
    assert problem in refused.value.problem
    assert refused.value.remedy
