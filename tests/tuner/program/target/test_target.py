"""Targets: read from jobs, from JSON and from this machine."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from tests.tuner.strategies import TARGETS
from tuner.errors import InvalidInput
from tuner.program.target import Target, cpu, native, tiles
from tuner.program.target.cpu_names import features_of
from tuner.search.reuse import is_related

PLAIN = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}


@given(TARGETS)
def test_a_target_comes_back_from_json(target: Target) -> None:
    data = json.loads(json.dumps(target.to_json()))
    assert data == target.to_json()
    again = Target.from_json(data)
    assert again == target
    assert again.fingerprint == target.fingerprint


def test_a_name_stands_for_what_its_cores_have() -> None:
    target = Target.from_json(PLAIN)
    assert (target.hardware.vector_bytes, target.hardware.vector_registers, target.hardware.cores) == (32, 16, 2)
    assert target.hardware.lanes() == 8
    assert target.hardware.lanes(2) == 16
    wide = Target.from_json(PLAIN | {"mcpu": "sapphirerapids"})
    assert (wide.hardware.vector_bytes, wide.hardware.vector_registers) == (64, 32)
    assert "amx_bf16" in wide.hardware.features
    oldest = Target.from_json({"kind": "llvm"})
    assert (oldest.mcpu, oldest.hardware.vector_bytes, oldest.hardware.fma_per_cycle) == ("x86-64", 16, 1)


def test_the_fingerprint_tells_every_field() -> None:
    target = Target.from_json(PLAIN)
    changed = [replace(target, mcpu="haswell")]
    for name in ("vector_bytes", "vector_registers", "l1d_bytes", "l2_bytes", "l3_bytes", "cores"):
        change: dict[str, Any] = {name: 7}
        changed.append(replace(target, hardware=replace(target.hardware, **change)))
    assert len({other.fingerprint for other in changed} | {target.fingerprint}) == 8
    assert target.fingerprint.startswith("llvm-x86-64-v3-")


def test_a_target_of_aarch64_is_known_by_its_cpu() -> None:
    target = Target.from_json({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1", "num-cores": 4})
    hardware = target.hardware
    assert target.architecture == "aarch64"
    assert (hardware.vector_registers, hardware.lanes(), hardware.cores) == (32, 4, 4)
    assert (hardware.l1d_bytes, hardware.l2_bytes) == (64 * 1024, 1024 * 1024)
    assert hardware.features == ("asimd", "asimdhp", "asimddp")
    assert Target.from_json(target.to_json()) == target
    assert target.fingerprint.startswith("llvm-neoverse-n1-")
    alike = target.to_json()["hardware"] | {"features": []}
    twin = Target.from_json({"kind": "llvm", "mcpu": "x86-64", "hardware": alike})
    assert twin.fingerprint.partition("-")[2] != target.fingerprint.partition("-")[2]
    assert not is_related(twin, target)


@pytest.mark.parametrize(
    ("flags", "mcpu"),
    [("fp asimd aes crc32", "cortex-a57"), ("fp asimd atomics fphp asimdhp asimddp i8mm bf16", "neoverse-n1")],
)
def test_a_machine_of_aarch64_is_known_by_what_linux_says_of_it(
    monkeypatch: pytest.MonkeyPatch, flags: str, mcpu: str
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(Path, "read_text", partialmethod(_cpuinfo, f"processor\t: 0\nFeatures\t: {flags}\n"))
    target = native()
    assert (target.architecture, target.mcpu) == ("aarch64", mcpu)
    assert (target.hardware.vector_bytes, target.hardware.vector_registers) == (16, 32)
    assert set(target.hardware.features) == set(flags.split()) & {"asimd", "asimdhp", "asimddp", "i8mm", "bf16"}
    assert Target.from_json(target.to_json()) == target


@pytest.mark.parametrize(
    ("fields", "like", "extra", "mcpu"),
    [
        ({"vendor_id": "AuthenticAMD", "cpu family": "26"}, "znver5", "", "znver5"),
        ({"vendor_id": "AuthenticAMD", "cpu family": "25"}, "znver4", "", "znver4"),
        ({"vendor_id": "AuthenticAMD", "cpu family": "25"}, "znver3", "", "znver3"),
        ({"vendor_id": "AuthenticAMD", "cpu family": "23"}, "znver2", "clwb", "znver2"),
        ({"vendor_id": "AuthenticAMD", "cpu family": "23"}, "znver1", "", "znver1"),
        ({"vendor_id": "AuthenticAMD", "cpu family": "26"}, "cascadelake", "", "cascadelake"),
        ({"vendor_id": "AuthenticAMD", "cpu family": "99"}, "znver4", "", "icelake-server"),
        ({"vendor_id": "GenuineIntel", "cpu family": "6"}, "icelake-server", "", "icelake-server"),
        ({"vendor_id": "GenuineIntel", "cpu family": "6"}, "graniterapids", "", "graniterapids"),
        ({"vendor_id": "GenuineIntel", "cpu family": "6"}, "sapphirerapids", "", "sapphirerapids"),
        ({"vendor_id": "somebody"}, "x86-64", "", "x86-64"),
    ],
)
def test_a_machine_has_the_name_of_its_own_cpu(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, str], like: str, extra: str, mcpu: str
) -> None:
    # A virtual machine may hide features: then the name is that of a usual CPU without them.
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(tiles, "refusal", str)
    lines = [f"{name}\t: {value}" for name, value in fields.items()]
    text = "\n".join([*lines, f"flags\t\t: {' '.join(features_of(like))} {extra}", ""])
    monkeypatch.setattr(Path, "read_text", partialmethod(_cpuinfo, text))
    assert native().mcpu == mcpu
    assert Target.from_json(native().to_json()) == native()


def test_a_machine_that_may_not_use_tiles_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    text = f"flags\t\t: {' '.join(features_of('sapphirerapids'))}\n"
    monkeypatch.setattr(Path, "read_text", partialmethod(_cpuinfo, text))
    for reason, mcpu in (("", "sapphirerapids"), ("no: do this", "icelake-server")):
        monkeypatch.setattr(tiles, "refusal", lambda reason=reason: reason)
        assert (native().mcpu, "amx_tile" in native().hardware.features) == (mcpu, not reason)
        assert cpu.refused() == cpu.refused(["amx_bf16"]) == reason
        assert cpu.refused(["avx2"]) == ""


def _cpuinfo(path: Path, text: str, *args: Any, **kwargs: Any) -> str:
    return text if path == Path("/proc/cpuinfo") else path.open(*args, **kwargs).read()


def test_this_machine_is_a_target() -> None:
    target = native()
    assert target == native()
    assert Target.from_json(target.to_json()) == target
    assert target.hardware.cores >= 1
    assert target.hardware.vector_bytes in (16, 32, 64)


@pytest.mark.parametrize(
    ("data", "field", "problem"),
    [
        (None, "target", "is not a target"),
        ([], "target", "is not a target"),
        ("cuda", "target", "is not a target"),
        ({}, "target.kind", "None is not known"),
        (PLAIN | {"kind": "rocm"}, "target.kind", "'rocm' is not known"),
        (PLAIN | {"kind": ["llvm"]}, "target.kind", "is not known"),
        (PLAIN | {"mcpu": "z80"}, "target.mcpu", "'z80' is not known"),
        (PLAIN | {"mcpu": None}, "target.mcpu", "is not known"),
        (PLAIN | {"num-cores": 0}, "target.num-cores", "0 is not a number of cores"),
        (PLAIN | {"num-cores": "2"}, "target.num-cores", "'2' is not a number of cores"),
        (PLAIN | {"num-cores": True}, "target.num-cores", "True is not a number of cores"),
        (PLAIN | {"num-cores": 1.0}, "target.num-cores", "1.0 is not a number of cores"),
        (PLAIN | {"march": "x"}, "target.march", "is not a field of a target"),
        (PLAIN | {"hardware": {}}, "target.hardware", "gives"),
        (PLAIN | {"hardware": 3}, "target.hardware", "is not a field"),
    ],
)
def test_a_bad_target_is_refused(data: Any, field: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Target.from_json(data)
    assert caught.value.field == field
    assert problem in caught.value.problem
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("l2_bytes", 0, "target.hardware.l2_bytes"),
        ("l2_bytes", -1, "target.hardware.l2_bytes"),
        ("l2_bytes", 2**48, "target.hardware.l2_bytes"),
        ("cores", "4", "target.hardware.cores"),
        ("cores", True, "target.hardware.cores"),
        ("cores", 1.5, "target.hardware.cores"),
        ("features", "avx2", "target.hardware.features"),
        ("features", [1], "target.hardware.features"),
        ("extra", 1, "target.hardware"),
    ],
)
def test_hardware_is_not_taken_on_trust(name: str, value: object, field: str) -> None:
    data = Target.from_json(PLAIN).to_json()
    data["hardware"] = data["hardware"] | {name: value}
    with pytest.raises(InvalidInput) as caught:
        Target.from_json(data)
    assert caught.value.field == field
