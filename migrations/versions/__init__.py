"""One file for each released schema, oldest first."""
