"""Agent loops and task handlers: what happens with a sandbox and a model between INIT and EVAL."""
