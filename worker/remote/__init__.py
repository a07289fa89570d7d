"""Searches in processes of their own: the messages between such a process and the worker."""
