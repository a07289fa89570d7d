"""The engine of products: loops around a register tile, the operands that it reads, and the theory of both."""
