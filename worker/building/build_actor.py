"""What compiles in a process of Ray's. Nothing here loads the compiler: what the actor is given to build with does."""

from __future__ import annotations

from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LibraryFiles
from tuner.measure import BuildResult
from tuner.measure.builders.child import Build, Link, Objects, build_one, link_one
from tuner.program.job.task import SearchTask
from tuner.schedule.space import MicroKernel


class BuildActor:
    """Compiles, one candidate after another."""

    def __init__(self, build: Build, link: Link) -> None:
        self._build, self._link = build, link

    def ready(self) -> None:
        """Returns once the compiler is loaded: the arguments, which are pickled by name, have imported it."""

    def build(self, task: SearchTask, kernel: MicroKernel, timeout_s: float) -> BuildResult:
        return build_one(self._build, task, kernel, timeout_s)

    def library(
        self, dispatcher: Dispatcher, job_id: str | None, objects: Objects, timeout_s: float
    ) -> LibraryFiles | str:
        return link_one(self._link, dispatcher, job_id, objects, timeout_s)
