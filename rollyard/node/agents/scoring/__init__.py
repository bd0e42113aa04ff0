"""Scores of answers and of code, computed in processes with limits of their own."""
