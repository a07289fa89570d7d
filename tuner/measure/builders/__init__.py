"""Builders: candidates are compiled in child processes of this one."""
