"""`rollyard serve`: the process that manages pools and rollouts. `main` starts it from `parts_and_wakeups`."""
