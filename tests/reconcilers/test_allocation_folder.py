"""Paths that are made of names."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.core.errors import NotFound
from rollyard.reconcilers.allocation_folder import AllocationFolders


@pytest.mark.parametrize("name", ["..", "", ".", "a/b", "demo-0/../../evil", "x" * 260, "a\0b", "Ä", "-a", "a\n"])
def test_a_name_that_no_allocation_can_have_makes_no_path(tmp_path: Path, name: str) -> None:
    workspace = AllocationFolders(tmp_path, "s", lambda role, uid: "t")
    for namespace, allocation in (("default", name), (name, "demo-0")):
        with pytest.raises(NotFound, match=r"allocation .* does not exist"):
            workspace.log_file(namespace, allocation)
    assert workspace.log_file("default", "demo-0") == tmp_path / "allocations" / "default.demo-0" / "job.log"
