"""The x86 contraction rule: dense and matmul on CPUs with vector units."""

from tuner.rules.x86_contraction.rule import X86Contraction

__all__ = ["X86Contraction"]
