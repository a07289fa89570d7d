"""How a timed call finds its operands in the caches: a part of what a latency means, like the number of threads."""

from __future__ import annotations

from enum import StrEnum

from tuner.errors import InvalidInput, did_you_mean, shown


class Cache(StrEnum):
    """WARM: as earlier calls left them. COLD: every operand is flushed before each call. STREAMED: packed constants are
    flushed before each call, activations are warm: so a layer finds its weights in a model, where others ran between.
    """

    WARM = "warm"
    COLD = "cold"
    STREAMED = "streamed"

    @property
    def note(self) -> str:
        """``, caches cold``; empty for warm ones, which go without saying."""
        return "" if self is Cache.WARM else f", caches {self.value}"


CACHES = tuple(cache.value for cache in Cache)


def parse_cache(value: object) -> Cache:
    """Raises InvalidInput on field ``cache``."""
    if not isinstance(value, str) or value not in CACHES:
        remedy = f"{did_you_mean(value, CACHES)}one of: {', '.join(CACHES)}"
        raise InvalidInput("cache", f"{shown(value)} is not a state of the caches", remedy)
    return Cache(value)
