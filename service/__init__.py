"""The HTTP service over the tuning database. It reads and stores; it never compiles, measures or runs anything."""
