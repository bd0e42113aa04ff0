"""A repository whose image has pytest."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import _pytest
import pytest
import pytest_asyncio

from rollyard.host.removed_folder import remove_folder
from rollyard.host.sandbox_account import sandbox_account
from tests.support.swe_repository import repository_root
from tests.tasks.swe.conftest import Site, site_of

PACKAGES = ("pytest", "_pytest", "py.py", "pluggy", "iniconfig", "packaging", "pygments")


@pytest.fixture(scope="session")
def image_with_pytest() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rollyard-test-"))
    folder.chmod(0o755)
    root = repository_root(folder / "root")
    library, account = next(root.glob("usr/lib/python3.*")), sandbox_account()
    for name in PACKAGES:
        source = Path(_pytest.__file__).parent.parent / name
        if source.is_dir():
            shutil.copytree(source, library / name)  # compiled too: each of the many runs would do it anew
        else:
            shutil.copy2(source, library / name)
        for path in (library / name, *(library / name).rglob("*")):
            shutil.chown(path, account.uid, account.gid)
    yield root
    remove_folder(folder)


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["bubblewrap", pytest.param("apptainer", marks=pytest.mark.long)]
)
async def site(request: pytest.FixtureRequest, image_with_pytest: Path) -> AsyncIterator[Site]:
    async with site_of(request.param, image_with_pytest) as made:
        yield made
