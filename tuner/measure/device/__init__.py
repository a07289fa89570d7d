"""The process behind a device: it serves sessions, and loads, verifies and times candidates in them."""
