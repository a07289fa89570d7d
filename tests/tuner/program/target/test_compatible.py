"""Targets whose libraries may serve another one: by their fingerprints alone, the most like it first."""

from __future__ import annotations

from dataclasses import replace

from tuner.program.target import Target
from tuner.program.target.compatible import MAX_CORES, cores_by_fingerprint, substitutes
from tuner.program.target.cuda import PRODUCTS

FOUR = Target.from_json({"kind": "llvm", "mcpu": "znver4", "num-cores": 4})


def on(cores: int, target: Target = FOUR) -> str:
    return replace(target, hardware=replace(target.hardware, cores=cores)).fingerprint


def test_the_nearest_number_of_cores_comes_first() -> None:
    there = [on(cores) for cores in (1, 2, 6, 16, 4)]
    assert [cores for _, cores in substitutes(FOUR, there)] == [6, 2, 1, 16]
    assert [name for name, _ in substitutes(FOUR, there)] == [on(cores) for cores in (6, 2, 1, 16)]


def test_a_fingerprint_is_that_of_the_target_as_a_job_file_gives_it() -> None:
    six = Target.from_json({"kind": "llvm", "mcpu": "znver4", "num-cores": 6}).fingerprint
    assert substitutes(FOUR, [six]) == [(six, 6)]


def test_a_cpu_has_the_name_of_a_usual_one_that_earlier_releases_gave_it() -> None:
    before = replace(FOUR, mcpu="icelake-server")
    assert substitutes(FOUR, [on(2, before), before.fingerprint, FOUR.fingerprint]) == [
        (before.fingerprint, 4), (on(2, before), 2),
    ]  # fmt: skip


def test_machines_of_very_many_cores_are_known_by_themselves_alone() -> None:
    large = Target.from_json({"kind": "llvm", "mcpu": "znver4", "num-cores": MAX_CORES + 1})
    assert substitutes(large, [on(4), on(MAX_CORES)]) == []
    assert substitutes(FOUR, [large.fingerprint]) == []


def test_both_have_cores_for_the_threads() -> None:
    there = [on(cores) for cores in (1, 2, 6)]
    assert [cores for _, cores in substitutes(FOUR, there, 2)] == [6, 2]
    assert substitutes(FOUR, there, 5) == []


def test_other_cpus_and_other_caches_are_others() -> None:
    cache = replace(FOUR, hardware=replace(FOUR.hardware, l2_bytes=2 * FOUR.hardware.l2_bytes))
    older = Target.from_json({"kind": "llvm", "mcpu": "znver3", "num-cores": 2})
    assert substitutes(FOUR, [on(2, cache), older.fingerprint, "llvm-unknown-0123456789ab"]) == []
    assert FOUR.fingerprint not in cores_by_fingerprint(FOUR)


def gpu(product: str) -> Target:
    return Target.from_json({"kind": "cuda", "product": product})


def test_code_for_a_gpu_runs_on_those_of_its_instruction_set_the_most_alike_first() -> None:
    own, odd = Target.of_gpu(replace(PRODUCTS["h200"], sms=120)), Target.of_gpu(replace(PRODUCTS["h100"], watts=350))
    there = [gpu(name).fingerprint for name in ("a100", "h100-pcie", "h200", "h100")]
    wanted = [gpu(name).fingerprint for name in ("h200", "h100", "h100-pcie")]
    assert substitutes(own, [*there, odd.fingerprint, own.fingerprint, FOUR.fingerprint]) == [
        (name, None) for name in (*wanted, odd.fingerprint)
    ]
    assert substitutes(gpu("rtx5090"), there) == []
    assert substitutes(FOUR, there) == []
