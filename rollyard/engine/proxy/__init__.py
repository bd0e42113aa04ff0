"""The reverse proxy in front of an engine: the only TCP socket of its allocation."""
