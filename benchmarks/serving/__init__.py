"""The parts of ``benchmarks.service``: what is stored, who asks, who writes."""
