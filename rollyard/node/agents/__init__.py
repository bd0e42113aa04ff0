"""Agent loops and task handlers: the work with a sandbox and a model from INIT to EVAL."""
