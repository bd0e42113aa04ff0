"""vLLM: the installed version, and its control while it runs."""
