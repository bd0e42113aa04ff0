"""Fixtures for the tests of sandboxes and of their images."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that the sandboxes' account can reach, unlike pytest's own folders, which only their owner can."""
    folder = Path(tempfile.mkdtemp(prefix="rollyard-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
