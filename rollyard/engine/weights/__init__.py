"""The weights that an engine serves, their change while it runs, and their proof."""
