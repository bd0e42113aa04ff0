"""`rollyard serve`: the process that manages pools and rollouts. `main` starts the server; `parts_and_wakeups` connects its parts."""
