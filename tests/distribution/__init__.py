"""The wheel, and what is installed from it."""
