"""Examples, each runnable: ``python -m examples.NAME`` from the repository's root."""
