"""Records as JSON lines: exporting them, importing those of another service."""
