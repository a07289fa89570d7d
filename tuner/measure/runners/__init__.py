"""Runners: candidates go to devices over TVM RPC, or to simulated ones."""
