"""NumPy's BLAS is called hobbled by what is known: kernels of an older CPU, or the variable that chose them."""

from __future__ import annotations

import pytest

from tuner.blas import HOBBLES, OLDER, cleaned, hobbled

AVX2 = frozenset({"avx", "avx2", "fma"})
AVX512 = AVX2 | {"avx512f"}


@pytest.mark.parametrize(
    ("kernels", "features", "unused"),
    [
        ("Haswell", AVX512, "AVX-512"), ("Zen", AVX512, "AVX-512"), ("Prescott", AVX512, "AVX-512"),
        ("Sandybridge", AVX2, "AVX2"), ("Nehalem", AVX2, "AVX2"), ("Nehalem", {"avx"}, "AVX"),
    ],
)  # fmt: skip
def test_kernels_of_an_older_cpu_hobble(kernels: str, features: frozenset[str], unused: str) -> None:
    expected = f"its {kernels} kernels use no {unused}, which this CPU has"
    assert hobbled("openblas", kernels, features, {"OPENBLAS_CORETYPE": kernels}) == expected


@pytest.mark.parametrize(
    ("kernels", "features"),
    [
        ("Haswell", AVX2), ("Zen", AVX2), ("Sandybridge", {"avx"}), ("Nehalem", frozenset()),
        ("SkylakeX", AVX512), ("Cooperlake", AVX512), ("SapphireRapids", AVX512), ("neoversev1", {"neon", "sve"}),
    ],
)  # fmt: skip
def test_kernels_that_use_what_the_cpu_has_do_not(kernels: str, features: frozenset[str]) -> None:
    assert hobbled("openblas", kernels, features, {}) == ""


@pytest.mark.parametrize("kernels", ["GraniteRapids", "Zen6", "DiamondRapids", "Unknown", ""])
def test_nothing_is_said_of_kernels_that_nobody_has_looked_at(kernels: str) -> None:
    assert kernels not in OLDER
    assert hobbled("openblas", kernels, AVX512, {"OPENBLAS_CORETYPE": kernels}) == ""


def test_of_a_blas_that_names_no_kernels_its_own_variables_count() -> None:
    environment = {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "OPENBLAS_CORETYPE": "Haswell", "MKL_NUM_THREADS": "1"}
    assert hobbled("mkl", "", AVX512, environment) == "MKL_ENABLE_INSTRUCTIONS=AVX2 limits its kernels"
    assert hobbled("blis", "", AVX512, environment) == ""
    assert hobbled("flexiblas", "", AVX512, environment) == ""
    assert cleaned(environment) == ["OPENBLAS_CORETYPE", "MKL_ENABLE_INSTRUCTIONS"]
    assert environment.keys().isdisjoint(HOBBLES)
