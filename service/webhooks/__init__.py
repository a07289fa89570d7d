"""Telling others that a job has ended: signed messages to the URL that the job names."""
