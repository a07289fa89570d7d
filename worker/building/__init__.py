"""Builds on a Ray cluster."""
