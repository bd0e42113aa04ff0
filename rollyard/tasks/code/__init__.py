"""The task kind `code`: what the agent wrote is run, and its values or outputs are compared outside of the sandbox."""
