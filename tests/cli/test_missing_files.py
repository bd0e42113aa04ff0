"""The look at the files that a pool names when the pool is applied."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.cli.missing_files import missing_file_warning
from rollyard.kinds.inference_pool import InferencePool
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
    warning = missing_file_warning(changed)
    assert (warning is None) if said is None else (warning is not None and warning.startswith(said))


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        ({"path": "/etc"}, None),
        ({"path": "/nowhere/m"}, "this machine has no /nowhere/m, the model: if the nodes have none either"),
        ({"path": "/etc", "tokenizer": "/nowhere/t"}, "this machine has no /nowhere/t, the tokenizer"),
    ],
)
def test_a_model_that_is_not_here_is_named(paths: dict[str, str], said: str | None) -> None:
    """The pool of a new user had a wrong path, and `apply` said nothing."""
    pool = next(one for one in load_manifests(POOLS.read_text(), "pools", "/") if isinstance(one, InferencePool))
    model = pool.spec.model.model_copy(update=paths)
    changed = pool.model_copy(update={"spec": pool.spec.model_copy(update={"model": model})})
    warning = missing_file_warning(changed)
    assert (warning is None) if said is None else (warning is not None and warning.startswith(said))
