"""The rule for convolutions of 3 x 3 taps by Winograd's minimal filtering."""

from tuner.schedule.rules.winograd.rule import X86Winograd

__all__ = ["X86Winograd"]
