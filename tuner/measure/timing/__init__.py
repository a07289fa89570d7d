"""How latencies are measured, and what they are compared with."""
