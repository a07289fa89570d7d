"""The parts of ``benchmarks.service`` and ``benchmarks.dashboard``: what is stored, who asks, who writes."""
