"""vLLM: which one is installed, and how it is controlled while it runs."""
