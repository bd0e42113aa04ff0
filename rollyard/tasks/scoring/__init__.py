"""Scores of answers and of code, computed in child processes with limits of their own."""
