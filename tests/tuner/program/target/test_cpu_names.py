"""CPUs by LLVM's names: which of them code can be generated for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tuner.errors import InvalidInput
from tuner.program.target import Target, llvm_cpus
from tuner.program.target.cpu import _CPUS, FEATURES
from tuner.program.target.cpu_names import TABLE, TRIPLES, architecture_of, features_of

HARDWARE = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}).to_json()["hardware"]


def refused(data: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        Target.from_json(data)
    assert caught.value.remedy
    return caught.value


def test_the_table_is_what_this_llvm_says() -> None:
    assert TABLE.read_text() == llvm_cpus.text(), "run python -m tuner.program.target.llvm_cpus"


def test_the_usual_cpus_have_no_feature_that_llvm_denies_them() -> None:
    for name, (features, _, _) in _CPUS.items():
        assert set(features) <= set(features_of(name)) <= set(FEATURES[architecture_of(name)]), name


def test_any_64_bit_cpu_of_llvm_is_a_target() -> None:
    target = Target.from_json({"kind": "llvm", "mcpu": "alderlake", "num-cores": 2})
    assert target.hardware.vector_bytes == 32
    assert target.hardware.features == ("avx", "avx2", "fma", "gfni", "vaes")
    assert Target.from_json({"kind": "llvm", "mcpu": "znver5", "num-cores": 2}).hardware.vector_bytes == 64
    assert Target.from_json({"kind": "llvm", "mcpu": "core2", "num-cores": 2}).hardware.vector_bytes == 16


@pytest.mark.parametrize("more", [{}, {"num-cores": 2}, {"hardware": HARDWARE}])
@pytest.mark.parametrize(
    ("mcpu", "problem", "remedy"),
    [
        ("nosuch", "is not known", "x86-64-v3"),
        ("nosuch -mattr=+foo", "is not known", "x86-64-v3"),
        ("haswell -mattr=+avx512f", "is not known", "haswell"),
        ("haswel", "is not known", "haswell"),
        (" haswell", "is not known", "haswell"),
        ("haswell\0", "is not known", "haswell"),
        ("", "is not known", "x86-64"),
        ("i386", "32-bit", "x86-64"),
        ("pentium4", "32-bit", "x86-64"),
        ("neoverse-x9", "is not known", "neoverse-n1"),
        ("x" * 100_000, "is not known", "x86-64"),
        (None, "is not known", "x86-64"),
        (["haswell"], "is not known", "x86-64"),
        ({}, "is not known", "x86-64"),
    ],
)
def test_a_cpu_that_no_code_can_be_generated_for_is_refused_in_every_form(
    mcpu: Any, problem: str, remedy: str, more: dict[str, Any]
) -> None:
    error = refused({"kind": "llvm", "mcpu": mcpu, **more})
    assert error.field == "target.mcpu"
    assert problem in error.problem
    assert remedy in error.remedy
    assert len(str(error)) < 400


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"features": ["avx2", "+foo"]}, "features", "'+foo' is not a feature"),
        ({"features": ["avx2", "avx2"]}, "features", "named twice"),
        ({"features": ["avx2"] * 10_000}, "features", "named twice"),
        ({"vector_bytes": 64}, "vector_bytes", "without avx512f"),
        ({"vector_bytes": 48}, "vector_bytes", "48 is not a size"),
        ({"vector_registers": 10**6}, "vector_registers", "is not a size"),
        ({"fma_per_cycle": 99}, "fma_per_cycle", "99 is not a size"),
        ({"l1d_bytes": 2**40}, "l1d_bytes", "is not a size"),
        ({"cores": 10**9}, "cores", "is not a size"),
    ],
)
def test_hardware_is_one_that_there_may_be(changes: dict[str, Any], field: str, problem: str) -> None:
    error = refused({"kind": "llvm", "mcpu": "x86-64-v3", "hardware": HARDWARE | changes})
    assert error.field == f"target.hardware.{field}"
    assert problem in error.problem


def test_features_beyond_the_cpus_name_are_the_machines_own() -> None:
    wide = {"features": [*HARDWARE["features"], "avx512f"], "vector_bytes": 64}
    assert Target.from_json({"kind": "llvm", "mcpu": "x86-64-v3", "hardware": HARDWARE | wide}).hardware.lanes() == 16


def test_every_cpu_of_aarch64_is_a_target() -> None:
    arm = [name for name in json.loads(TABLE.read_text())["aarch64"] if architecture_of(name) == "aarch64"]
    assert len(arm) > 50
    for mcpu in arm:
        hardware = Target.from_json({"kind": "llvm", "mcpu": mcpu, "num-cores": 2}).hardware
        assert (hardware.vector_bytes, hardware.vector_registers, hardware.lanes()) == (16, 32, 4)
        assert hardware.features[0] == "asimd"


def test_a_name_that_both_architectures_have_is_that_of_x86() -> None:
    table = json.loads(TABLE.read_text())
    assert set(table["x86_64"]) & set(table["aarch64"]) == {"generic"}
    assert architecture_of("generic") == "x86_64"


@pytest.mark.parametrize("mcpu", ["neoverse-n1", "x86-64-v3"])
def test_the_triple_of_llvm_may_be_given_and_must_be_the_cpus(mcpu: str) -> None:
    plain = {"kind": "llvm", "mcpu": mcpu, "num-cores": 2}
    own = TRIPLES[architecture_of(mcpu)]
    (other,) = set(TRIPLES.values()) - {own}
    assert Target.from_json(plain | {"mtriple": own}) == Target.from_json(plain)
    error = refused(plain | {"mtriple": other})
    assert (error.field, mcpu in error.problem, own in error.remedy) == ("target.mtriple", True, True)
    assert refused(plain | {"mtriple": "riscv64-linux-gnu"}).field == "target.mtriple"
    assert refused(plain | {"mtriple": [own]}).field == "target.mtriple"


def test_a_triple_alone_names_no_cpu_of_aarch64() -> None:
    assert "as in neoverse-n1" in refused({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}).remedy


def test_features_are_those_of_the_architecture() -> None:
    arm = Target.from_json({"kind": "llvm", "mcpu": "cortex-a57", "num-cores": 2}).to_json()
    assert "sse" not in str(arm)
    richer = arm | {"hardware": arm["hardware"] | {"features": ["asimd", "asimddp", "i8mm"]}}
    assert Target.from_json(richer).to_json() == richer
    for changes in ({"features": ["avx2"]}, {"vector_bytes": 32}):
        assert refused(arm | {"hardware": arm["hardware"] | changes}).field.startswith("target.hardware.")
    assert refused({"kind": "llvm", "mcpu": "x86-64", "hardware": HARDWARE | {"features": ["asimd"]}}).field == (
        "target.hardware.features"
    )
