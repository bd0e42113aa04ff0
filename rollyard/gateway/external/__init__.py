"""Sessions of agents outside of sandboxes."""
