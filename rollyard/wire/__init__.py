"""Messages and files that server, node agents and engines exchange."""
