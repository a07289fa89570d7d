"""Operands that are no matrices as they lie: viewed, gathered at each call, or read in a copy of an image."""
