"""The engine's process: start, supervision, restart, and the reason of a crash."""
