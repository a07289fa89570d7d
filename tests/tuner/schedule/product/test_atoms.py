"""The registry of instructions: what it offers for which dtypes on which CPUs."""

from __future__ import annotations

import pytest

from tuner.program.target import Target
from tuner.schedule.product.atoms import atoms_either_way, atoms_of


def names(left: str, right: str, total: str, mcpu: str) -> dict[int, str]:
    hardware = Target.from_json({"kind": "llvm", "mcpu": mcpu, "num-cores": 1}).hardware
    return {group: dot.name for group, dot in atoms_of(left, right, total, hardware).items()}


@pytest.mark.parametrize(
    ("mcpu", "floats", "signed", "unsigned"),
    [
        ("x86-64", {1: "fma"}, {}, {}),
        ("x86-64-v3", {1: "fma"}, {2: "pmaddwd"}, {2: "pmaddwd"}),
        ("x86-64-v4", {1: "fma"}, {2: "pmaddwd"}, {2: "pmaddwd"}),
        ("icelake-server", {1: "fma"}, {2: "pmaddwd", 4: "dpbusd"}, {2: "pmaddwd"}),
        ("znver4", {1: "fma", 2: "dpbf16ps"}, {2: "pmaddwd", 4: "dpbusd"}, {2: "pmaddwd"}),
        ("cortex-a57", {1: "fma"}, {}, {}),
        ("neoverse-n1", {1: "fma"}, {4: "sdot"}, {4: "udot"}),
        ("neoverse-v2", {1: "fma"}, {4: "sdot"}, {4: "udot"}),
    ],
)
def test_a_cpu_has_the_instructions_of_its_features(
    mcpu: str, floats: dict[int, str], signed: dict[int, str], unsigned: dict[int, str]
) -> None:
    assert names("bfloat16", "bfloat16", "float32", mcpu) == floats
    assert names("int8", "int8", "int32", mcpu) == signed
    assert names("uint8", "uint8", "int32", mcpu) == unsigned
    # Elements of different sizes, or of other dtypes, are widened where there is arithmetic on both.
    assert names("float32", "bfloat16", "float32", mcpu) == names("float16", "int8", "float32", mcpu) == {1: "fma"}
    assert names("int32", "int32", "int32", mcpu) == names("int8", "int8", "float32", mcpu) == {}


def test_only_operands_with_a_sign_are_shifted() -> None:
    hardware = Target.from_json({"kind": "llvm", "mcpu": "icelake-server", "num-cores": 1}).hardware
    assert atoms_of("int8", "int8", "int32", hardware)[4].offset == 128
    assert atoms_of("uint8", "int8", "int32", hardware)[4].offset == 0


@pytest.mark.parametrize(("mcpu", "name", "offset"), [("neoverse-n1", "sdot", -128), ("neoverse-v2", "usdot", 0)])
def test_on_aarch64_bytes_of_both_kinds_are_shifted_unless_there_is_an_instruction(
    mcpu: str, name: str, offset: int
) -> None:
    hardware = Target.from_json({"kind": "llvm", "mcpu": mcpu, "num-cores": 1}).hardware
    dot = atoms_of("uint8", "int8", "int32", hardware)[4]
    assert (dot.name, dot.offset) == (name, offset)
    first = atoms_either_way("int8", "uint8", "int32", hardware)[0]
    assert (first.name, first.offset, first.is_swapped) == (name, offset, True)


def test_operands_change_places_where_that_needs_no_offset() -> None:
    hardware = Target.from_json({"kind": "llvm", "mcpu": "icelake-server", "num-cores": 1}).hardware

    def first(left: str, right: str) -> tuple[str, int, bool, int]:
        best = next(dot for dot in atoms_either_way(left, right, "int32", hardware) if dot.group == 4)
        return best.name, best.group, best.is_swapped, best.offset

    assert first("uint8", "int8") == ("dpbusd", 4, False, 0)
    assert first("int8", "uint8") == ("dpbusd", 4, True, 0)
    assert first("int8", "int8") == ("dpbusd", 4, False, 128)
    shifted = [dot.is_swapped for dot in atoms_either_way("int8", "int8", "int32", hardware) if dot.offset]
    assert shifted == [False, True]
    assert {dot.group for dot in atoms_either_way("uint8", "uint8", "int32", hardware)} == {2}
