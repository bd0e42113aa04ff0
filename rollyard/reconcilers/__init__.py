"""One file a kind, thin: observe, plan, act, write status. What is decided is decided in `plan` and `autoscaler`, pure."""
