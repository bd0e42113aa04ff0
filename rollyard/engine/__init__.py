"""The process in an InferencePool's allocation. It supervises an engine, and runs the engine's reverse proxy."""
