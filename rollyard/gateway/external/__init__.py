"""Sessions of external agents, which run outside of sandboxes."""
