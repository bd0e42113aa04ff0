"""The look at a pool's default image when the pool is applied."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.cli.default_image import default_image_warning
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.schema.yaml import load_manifests

POOLS = Path("examples/demo/pools.yaml")


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (None, None),
        ("docker://debian:12", None),
        ("/", None),
        ("/nowhere/a.sif", "this machine has no /nowhere/a.sif, the defaultImage: if the nodes have none"),
        ("oci-archive:/nowhere/a.tar:v1", "this machine has no /nowhere/a.tar"),
        ("/etc/a.def", "the defaultImage /etc/a.def is a recipe: build the image with `rollyard images build`"),
    ],
)
def test_a_default_image_that_is_not_here_is_named(image: str | None, said: str | None) -> None:
    pool = next(one for one in load_manifests(POOLS.read_text(), "pools", "/") if isinstance(one, RolloutPool))
    sandbox = pool.spec.sandbox.model_copy(update={"default_image": image})
    changed = pool.model_copy(update={"spec": pool.spec.model_copy(update={"sandbox": sandbox})})
    warning = default_image_warning(changed)
    assert (warning is None) if said is None else (warning is not None and warning.startswith(said))
