"""Verification of a candidate: its inputs, the shapes, guarded memory and the comparison with the reference."""
