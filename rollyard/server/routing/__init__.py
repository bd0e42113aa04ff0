"""Which model servers there are, which are healthy, and which one a rollout gets."""
