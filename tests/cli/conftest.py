"""Fixtures of the tests of commands that work on the node itself."""

from tests.images.conftest import registry

__all__ = ["registry"]
