"""Reconcilers, one thin file a kind: observe, plan, act, write status. `plan` and `autoscaler` decide, and are pure."""
