"""Parsers of test logs: text in, the status of each test out. They do no I/O and end on any text."""
