"""The command that starts an engine, derived from the pool's spec and the software on the node."""
