"""Messages and files that cross between processes: server, node agents, engines."""
