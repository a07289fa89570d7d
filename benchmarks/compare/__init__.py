"""What every benchmark of libraries does: search, check against the reference, time in turns, sum up."""
