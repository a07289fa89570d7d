"""Products with weights that are computed from packed constants: 4 bits, or bytes, with scales."""

from tuner.schedule.rules.quantized.rule import X86Quantized

__all__ = ["X86Quantized"]
