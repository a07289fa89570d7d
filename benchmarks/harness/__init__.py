"""What every benchmark stands on: turns, contenders, rows, the document of results. It knows no rival and no script."""
