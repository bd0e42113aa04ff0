"""Evaluations: statistics over the rewards of a set of tasks, and their comparison. Pure."""
