"""Every claim of speed, runnable."""
