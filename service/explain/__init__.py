"""Job files before they cost anything: whether they are right, and how they would be searched."""
