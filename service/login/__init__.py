"""Signing in with a browser: a one-time link or an API key, exchanged for a cookie."""
