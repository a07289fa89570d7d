"""Figures of jobs, workloads and devices as Plotly JSON."""
