"""Rows of published data sets, which the task kinds convert to tasks."""
