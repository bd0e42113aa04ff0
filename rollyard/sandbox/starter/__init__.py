"""A small process that starts the launchers of sandboxes for the node agent."""
