"""Task kind `swe`: a repository, what the agent made of it, and the tests that score it."""
