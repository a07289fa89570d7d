"""The dashboard: pages that show jobs, searches, workloads and devices, and the figures on them."""
