"""`rollyard serve`: the process that keeps pools and rollouts. `main` starts it, `wiring` joins its parts."""
