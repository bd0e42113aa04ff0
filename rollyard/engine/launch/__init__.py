"""The command that starts an engine, found from the pool's spec and from what its node has."""
