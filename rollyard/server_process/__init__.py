"""`rollyard serve`: the process that manages pools and rollouts. `main` starts it, with the parts that
`parts_and_wakeups` makes."""
