"""`rollyard serve`: the process that holds pools and rollouts. `main` starts it, `wiring` joins its parts."""
