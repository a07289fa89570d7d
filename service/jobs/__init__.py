"""Tuning jobs: submitting them, and following what becomes of them."""
