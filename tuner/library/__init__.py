"""What is delivered: set selection, the dispatcher, code generation, packaging and lookup."""
