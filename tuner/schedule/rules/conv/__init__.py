"""The rule for contractions of any form: convolutions, several axes in a role, products of many factors."""

from tuner.schedule.rules.conv.rule import X86Gathered

__all__ = ["X86Gathered"]
