"""The parameters of GET /workloads/{key}/best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, model_validator

from service.lookup.lookups import Query
from service.workloads.service import fingerprint
from tuner.program.job.cache import Cache
from tuner.program.job.instances import parse_shape
from tuner.storage import LookupScope


class BestQuery(BaseModel):
    """A model of its own: the route and the direct path (service/lookup/direct.py) check the same."""

    shape: str = Field(
        "",
        max_length=1000,
        description="the workload's symbols, as in m=592; or the newest job's variables, as in T=37,S=4",
    )
    target: str | None = Field(None, max_length=200, description="a target's fingerprint; the newest if left out")
    threads: int = Field(1, ge=1, le=1024, description="how many threads a kernel runs on")
    cache: Cache = Field(Cache.WARM, description="how calls find their operands: warm, cold or streamed")
    job: str | None = Field(None, max_length=200, description="only what this job measured and built")

    @model_validator(mode="before")
    @classmethod
    def _without_blanks(cls, given: Any) -> Any:
        """``?target=`` is as good as none."""
        return {name: value for name, value in given.items() if value != ""} if isinstance(given, Mapping) else given

    def lookup(self, key: str) -> Query:
        """The lookup that is meant, of the workload with this key. Raises InvalidInput."""
        scope = LookupScope(key, fingerprint(self.target), self.threads, self.job, self.cache)
        return Query(scope, parse_shape(self.shape))
