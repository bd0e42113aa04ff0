"""vLLM: the installed version, and its control at run time."""
