"""The loop: policies, the cost model, trials, observations and finishing."""
