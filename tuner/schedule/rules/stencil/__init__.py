"""The rule for small windows that move over a tensor: pooling, depthwise convolution, stencils."""

from tuner.schedule.rules.stencil.rule import Windows

__all__ = ["Windows"]
