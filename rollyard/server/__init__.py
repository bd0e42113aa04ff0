"""`rollyard serve`: the process that has the pools and the rollouts. `main` starts it, `wiring` joins its parts."""
