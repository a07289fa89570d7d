"""Theory's set and nothing more: what the analytic model chose is measured, and the search ends.

It costs seconds and no luck: the library is the best of the kernels that theory proposed for the set, chosen by their
times. Its method is one for sets already (tuner/search/policy/theory.py): every instance is measured with the kernel
that theory gives it, and with those of the others at the ends and in the middle of the range.
"""

from __future__ import annotations

from tuner.search.policy._base import Pick
from tuner.search.policy.theory_first import BasePolicy


class TheoryAlone(BasePolicy):
    """Ends once every pair of theory's round was measured; goes on with what is missing where a budget cut it off."""

    def _next(self, trials: int, devices: int) -> list[Pick]:
        rest = [
            (kernel, [at for at in indices if not self._measured.readings(kernel, self._task.instances[at])])
            for kernel, indices in self._first_round()
            if kernel not in self._pending
        ]
        return [(kernel, indices) for kernel, indices in rest if indices]
