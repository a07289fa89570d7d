"""The x86 contraction rule: dense and matmul on CPUs with vector units."""

from tuner.schedule.rules.matmul.rule import X86Contraction

__all__ = ["X86Contraction"]
