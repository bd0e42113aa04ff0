"""The process in an InferencePool's allocation: it supervises an engine and stands in front of it."""
