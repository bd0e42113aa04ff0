"""Reconcilers: each one observes, plans, acts and writes the status. `plan` and `autoscaler` decide, and are pure."""
