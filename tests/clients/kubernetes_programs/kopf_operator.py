"""An operator of rollout pools with kopf, which prints what its handlers see."""

from typing import Any

import kopf

KIND = ("rollyard.dev", "v1alpha1", "rolloutpools")


@kopf.on.create(*KIND)
def created(name: str, **_: Any) -> None:
    print("created", name, flush=True)


@kopf.on.update(*KIND, field="metadata.labels")
def relabelled(name: str, new: Any, **_: Any) -> None:
    print("relabelled", name, dict(new), flush=True)


@kopf.on.delete(*KIND)
def deleted(name: str, **_: Any) -> None:
    print("deleted", name, flush=True)
