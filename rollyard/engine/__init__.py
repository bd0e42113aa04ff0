"""The process in an InferencePool's allocation. It supervises an engine, and runs the reverse proxy in front of it."""
