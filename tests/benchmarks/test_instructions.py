"""Rivals keep to the instructions that they are limited to, and say so."""

from __future__ import annotations

import sys

import pytest

from benchmarks.instructions import LIMITS, VARIABLES, WIDE, limit_instructions, limits_of, restricted, said_under
from tests.compiled import runnable
from tuner.errors import InvalidInput
from tuner.program.target import Target, native


def target_of(mcpu: str) -> Target:
    return Target.from_json({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})


@pytest.mark.parametrize(
    ("mcpu", "limits"),
    [
        ("x86-64", ("SSE4_2", "SSE41", "default")),
        ("x86-64-v3", ("AVX2", "AVX2", "avx2")),
        ("haswell", ("AVX2", "AVX2", "avx2")),
        ("skylake-avx512", ("AVX512", "AVX512_CORE", "avx512")),
        ("cascadelake", ("AVX512_E1", "AVX512_CORE_VNNI", "avx512")),
        ("znver4", ("AVX512_E3", "AVX512_CORE_BF16", "avx512")),
    ],
)
def test_a_cpu_has_the_limits_of_its_widest_instructions(mcpu: str, limits: tuple[str, ...]) -> None:
    assert tuple(limits_of(target_of(mcpu))[name] for name in VARIABLES) == limits
    assert limits in [values for _, values in LIMITS]


def test_no_rival_can_be_limited_on_aarch64() -> None:
    with pytest.raises(InvalidInput, match="rivals cannot be limited to neoverse-n1"):
        limits_of(target_of("neoverse-n1"))


def test_a_restricted_target_keeps_caches_and_cores_of_this_machine() -> None:
    plain, here = runnable("x86-64-v3").hardware, native().hardware
    hardware = restricted("x86-64-v3").hardware
    assert (
        (hardware.vector_bytes, hardware.vector_registers) == (plain.vector_bytes, plain.vector_registers) == (32, 16)
    )
    assert hardware.features == plain.features
    for name in ("l1d_bytes", "l2_bytes", "l3_bytes", "cores"):
        assert getattr(hardware, name) == getattr(here, name)


def test_a_cpu_of_another_architecture_is_refused() -> None:
    other = "neoverse-n1" if native().architecture == target_of("x86-64").architecture else "x86-64"
    with pytest.raises(InvalidInput, match=f"mcpu: code for {other} does not run here: this machine lacks"):
        restricted(other)


@pytest.mark.soak
def test_libraries_say_that_they_are_limited() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'shapewright[bench]'")
    said = said_under(limits_of(runnable("x86-64-v3")))
    assert said["torch"] == "AVX2"
    assert said["onednn"].endswith("AVX2")
    assert "avx2" in said["onednn_linear"]
    assert said["mkl"].startswith("oneMKL"), "on CPUs of other makers it does not tell its instructions"
    assert not any(WIDE.search(text) for text in said.values())


def test_limits_after_pytorch_was_loaded_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", sys)
    with pytest.raises(RuntimeError, match="loaded before"):
        limit_instructions(target_of("x86-64-v3"))
