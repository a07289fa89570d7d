"""Schedule rules, tried in order; the first that applies takes the workload."""

from __future__ import annotations

from tuner.errors import InvalidInput
from tuner.program.workload import Workload
from tuner.rules._base import Extents, ScheduleRule
from tuner.rules.x86_contraction import X86Contraction

RULES: tuple[ScheduleRule, ...] = (X86Contraction(),)


def rule_for(workload: Workload) -> ScheduleRule:
    """The rule that takes ``workload``. Raises InvalidInput with every rule's reason if none does."""
    reasons = []
    for rule in RULES:
        reason = rule.refuses(workload)
        if reason is None:
            return rule
        reasons.append(f"{rule.name}: {reason}")
    raise InvalidInput("workload", f"no schedule rule takes {workload}", "; ".join(reasons))


__all__ = ["RULES", "Extents", "ScheduleRule", "rule_for"]
