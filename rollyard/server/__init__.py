"""`rollyard serve`: the process that manages pools and rollouts. `main` starts the server; `wiring` connects its parts."""
