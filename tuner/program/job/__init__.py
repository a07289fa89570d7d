"""Job files: what a user submits, and the search tasks that it asks for."""
