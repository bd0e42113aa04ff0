"""The yard for every test in this folder."""

from e2e_yard import yard

__all__ = ["yard"]
