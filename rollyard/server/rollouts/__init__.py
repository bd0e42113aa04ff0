"""Rollouts: the pure `step`, the queue, leases with fences, results. Every durable change is made by `step`."""
