"""Rollouts: the pure `step`, the queue, leases with fences, results. `step` makes every durable change of a rollout."""
