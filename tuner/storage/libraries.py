"""Built libraries: which one is served, and which names were given to which."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tuner.library.choice import Point
from tuner.program.job.cache import Cache
from tuner.program.job.range_text import Ranges
from tuner.program.language.workload import JsonObject


class Verdict(StrEnum):
    """What became of a new library that was compared with the one that was served: it took its place, or not."""

    REPLACES = "replaces"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A new library and the one that was served, timed in turns on the device.

    ``against`` is the digest of the latter. ``ratio``: its weighted time over the new one's, above 1 the new one is
    faster. ``noise``: how far the ratio may be off, relatively. ``verified``: the new one computed rightly throughout.
    ``caution``: what makes the ratio worth less, such as a device that was noisy.
    """

    against: str
    ratio: float
    noise: float
    verified: bool
    caution: str = ""

    @property
    def wins(self) -> bool:
        """Whether the new library is verified and faster beyond noise. False for what is no ratio at all."""
        plausible = math.isfinite(self.ratio) and math.isfinite(self.noise) and self.noise >= 0
        return self.verified and plausible and self.ratio > 1 + self.noise

    @property
    def timed(self) -> Mapping[str, tuple[float, bool]]:
        """The ratio, and whether the new library won, by the digest of the other: ``Candidate.timed`` of its choice."""
        return {self.against: (self.ratio, self.wins)}

    def to_json(self, verdict: Verdict) -> JsonObject:
        facts = {"against": self.against, "ratio": self.ratio, "noise": self.noise, "verified": self.verified}
        caution = {"caution": self.caution} if self.caution else {}
        return {**facts, **caution, "verdict": verdict.value}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Comparison:
        """Read what ``to_json`` wrote. A ratio that the database could not hold, NaN, proves nothing."""
        ratio, noise = (math.nan if data[name] is None else float(data[name]) for name in ("ratio", "noise"))
        caution = str(data.get("caution") or "")
        return Comparison(str(data["against"]), ratio, noise, bool(data["verified"]), caution)


@dataclass(frozen=True, slots=True)
class LibraryRow:
    """A built library without its files: what lists show.

    ``ranges`` are those of the workload's symbols that it was made for, ``protocol`` how its kernels were measured
    (None: not known). ``superseded_by`` is the digest of the library that is served in its place, None where it may be
    served itself. ``wrong_kernel`` is the id of a kernel of it that was found wrong, or crashed, since: such a library
    is withdrawn, reached by its job or its digest alone. ``comparison`` has the members of ``Comparison`` and the
    ``verdict``. ``aliases`` name it at present.
    """

    digest: str
    workload_key: str
    target_fingerprint: str
    threads: int
    job_id: str | None
    created_at: str
    ranges: Ranges
    cache: Cache = Cache.WARM
    protocol: str | None = None
    superseded_by: str | None = None
    comparison: JsonObject | None = None
    aliases: tuple[str, ...] = ()
    wrong_kernel: str | None = None


@dataclass(frozen=True, slots=True)
class Artifact:
    """A built library: the files that ``pull`` writes, by name, and the facts that name it.

    ``manifest`` and ``dispatch`` are the parsed content of the files manifest.json and dispatch.json.
    """

    digest: str
    workload_key: str
    target_fingerprint: str
    threads: int
    job_id: str | None
    manifest: JsonObject
    dispatch: JsonObject
    created_at: str = ""
    cache: Cache = Cache.WARM


@dataclass(frozen=True, slots=True)
class LibraryQuery:
    """A query for a library.

    ``ranges`` are of the workload's symbols; left out, they are those of the widest library. ``target_fingerprint``
    left out is that of the newest library, ``threads`` 1 or the only number that there is, ``cache`` warm or the only
    one. With a job, a digest or an alias it is that very library, served or not. ``points``: where the caller will use
    it; left out, the instances that the libraries were searched for.
    """

    workload_key: str
    target_fingerprint: str | None = None
    threads: int | None = None
    ranges: Ranges | None = None
    job_id: str | None = None
    digest: str | None = None
    alias: str | None = None
    points: tuple[Point, ...] = ()
    cache: Cache | None = None

    @property
    def is_named(self) -> bool:
        """Whether it names one library, rather than the best."""
        return any(name is not None for name in (self.job_id, self.digest, self.alias))


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another library that covers the requested range.

    ``ratio``: its time over that of the library served, above 1 the served one is faster; None where they cannot be
    compared. ``timed_in_turns``: on the device, side by side; by recorded latencies otherwise.
    """

    library: LibraryRow
    expected_s: float | None
    ratio: float | None
    timed_in_turns: bool


@dataclass(frozen=True, slots=True)
class Served:
    """The library that is served for a query, and how it compares.

    ``ranges`` is the range that was asked for. ``expected_s`` is the weighted mean time of the points that libraries
    were compared at, None where it is not known. ``measured`` of the ``points`` were measured, the others predicted.
    """

    library: LibraryRow
    ranges: Ranges
    expected_s: float | None
    points: int
    measured: int
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Alias:
    """A name for one library of a workload on a target with a number of threads, tuned for one state of the caches.

    ``at_least_percent``: a new library that is verified and at least so much faster takes the name by itself; None:
    only by hand.
    """

    name: str
    library: LibraryRow
    promoted_at: str
    promoted_by: str
    reason: str
    at_least_percent: float | None


class Action(StrEnum):
    """How an alias came to name a library."""

    PROMOTED = "promoted"
    BY_RULE = "by_rule"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True)
class Promotion:
    """An entry of an alias's history. Digests of libraries that were deleted are None."""

    name: str
    target_fingerprint: str
    threads: int
    cache: Cache
    action: Action
    digest: str | None
    previous: str | None
    at: str
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class AliasQuery:
    """Aliases of a workload: of one name, on one target, with one number of threads, for one state of the caches, as
    far as these are given."""

    workload_key: str
    name: str | None = None
    target_fingerprint: str | None = None
    threads: int | None = None
    cache: Cache | None = None


@dataclass(frozen=True, slots=True)
class PromotionOrder:
    """Who gives a name to a library, why, and by which rule it may move on. ``actor``: as of an ``AuditEntry``."""

    by: str
    reason: str = ""
    at_least_percent: float | None = None
    actor: str = ""
