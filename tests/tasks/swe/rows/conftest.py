"""The packages with which rows without a script are converted, installed once into the tests' cache."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rollyard.tasks.swe.rows.released_packages import ReleasedPackages
from tests.support.released import CACHE


@pytest.fixture(scope="module")
def packages() -> Iterator[ReleasedPackages]:
    made = ReleasedPackages(CACHE, print)
    yield made
    made.close()
