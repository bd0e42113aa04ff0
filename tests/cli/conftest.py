"""Fixtures of the tests of commands that work on the node itself."""

from tests.node.conftest import open_folder
from tests.node.images.conftest import registry

__all__ = ["open_folder", "registry"]
