"""Rollouts: the pure `step`, the queue, leases with fences, results. Everything durable goes through `step`."""
