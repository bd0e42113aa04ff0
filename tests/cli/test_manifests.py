"""Manifests from files and folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.cli.manifests import read_manifests
from rollyard.core.errors import BadRequest

POOL = """apiVersion: rollyard.dev/v1alpha1
kind: RolloutPool
metadata: {name: NAME}
spec: {inference: {policy: p}, replicas: 1}
"""


def pool(name: str) -> str:
    return POOL.replace("NAME", name)


def test_a_file_of_a_folder_with_comments_alone_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("# later\n")
    with pytest.raises(BadRequest, match=r"no file in .* declares an object"):
        read_manifests((str(tmp_path),), "default")
    (tmp_path / "b.yaml").write_text(pool("b"))
    assert [obj.metadata.name for obj in read_manifests((str(tmp_path),), "default")] == ["b"]
    with pytest.raises(BadRequest, match="declares no object"):
        read_manifests((str(tmp_path / "a.yaml"),), "default")


def test_an_object_that_is_given_twice_is_refused_with_both_places(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"{pool('x')}---\n{pool('x')}")
    with pytest.raises(BadRequest, match=r"rolloutpool/x in namespace default is given twice in .*a.yaml; keep one"):
        read_manifests((str(tmp_path / "a.yaml"),), "default")
    (tmp_path / "a.yaml").write_text(pool("x"))
    (tmp_path / "b.yaml").write_text(pool("x"))
    with pytest.raises(BadRequest, match=r"is given in .*a.yaml and in .*b.yaml"):
        read_manifests((str(tmp_path),), "default")
    (tmp_path / "b.yaml").write_text(pool("x").replace("name: x", "name: x, namespace: other"))
    assert len(read_manifests((str(tmp_path),), "default")) == 2
