"""Strict reading of kinds, and how they are shown: YAML, validation, columns."""
