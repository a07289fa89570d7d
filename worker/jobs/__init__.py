"""A leased job, from its first search task to its end."""
