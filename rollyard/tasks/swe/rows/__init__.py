"""Rows of SWE-bench and its family, converted to tasks of the kind `swe`. Each family has a module, with a pure function from a
row to the fields of a task."""
