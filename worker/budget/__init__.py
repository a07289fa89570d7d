"""How the searches of a job share its budget."""
