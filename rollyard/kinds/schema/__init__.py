"""Strict parsing of kinds, and their display: YAML, validation, columns."""
