"""Jobs side by side."""
