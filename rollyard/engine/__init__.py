"""The process in an InferencePool's allocation: it supervises an engine and runs the reverse proxy in front of it."""
