"""Namespaces, stale manifests and owners, from the command line."""

from __future__ import annotations

from pathlib import Path

from rollyard.core.errors import NotFound
from rollyard.kinds.base import KindObject
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.registry import parse_object
from rollyard.kinds.rollout_pool import RolloutPool
from tests.support.yard import Yard

POOL = """
apiVersion: rollyard.dev/v1alpha1
kind: RolloutPool
metadata: {name: empty, namespace: lab}
spec: {replicas: 0, inference: {policy: others}}
"""


async def test_a_namespace_that_differs_from_the_manifests_is_an_error_and_get_says_where_pools_are(yard: Yard) -> None:
    for words in (("apply",), ("apply", "--dry-run=client"), ("diff",), ("delete",)):
        _, err = await yard.rollyard(*words, "-n", "other", "-f", "-", text=POOL, code=2 if words == ("diff",) else 1)
        assert "rolloutpool/empty (lab) does not match the namespace 'other': leave out -n, write -n lab" in err, words
    _, err = await yard.rollyard("apply", "-f", "-", text=POOL)
    assert 'Warning: namespace "lab" had no objects before; the others are default' in err
    _, err = await yard.rollyard("apply", "-n", "lab", "-f", "-", text=POOL)
    assert err == ""
    _, err = await yard.rollyard("get", "rp")
    assert err == "No resources found in default namespace. There are some in lab: use -n, or -A for all namespaces.\n"
    _, err = await yard.rollyard("get", "rp,ip", "-n", "lba")
    assert "There are some in lab" in err


async def test_a_saved_manifest_that_is_out_of_date_says_what_to_remove(yard: Yard, tmp_path: Path) -> None:
    await yard.rollyard("apply", "-f", "-", text=POOL)
    saved, _ = await yard.rollyard("get", "rp", "empty", "-n", "lab", "-o", "yaml")
    await yard.rollyard("suspend", "rp", "empty", "-n", "lab")
    file = tmp_path / "saved.yaml"
    file.write_text(saved)
    for words, code in ((("diff",), 2), (("apply",), 1), (("apply", "--dry-run=server"), 1)):
        _, err = await yard.rollyard(*words, "-f", str(file), code=code)
        assert "has changed since this manifest was read" in err
        assert "Remove metadata.resourceVersion from the manifest to apply it anyway" in err
    file.write_text("\n".join(line for line in saved.splitlines() if "resourceVersion:" not in line))
    out, _ = await yard.rollyard("apply", "-f", str(file))
    assert out == "rolloutpool/empty configured\n"
    again, _ = await yard.rollyard("get", "rp", "empty", "-n", "lab", "-o", "yaml")
    file.write_text("\n".join(line for line in again.splitlines() if "resourceVersion:" not in line))
    assert (await yard.rollyard("apply", "-f", str(file)))[0] == "rolloutpool/empty unchanged\n"


async def test_a_pool_is_deleted_when_the_last_of_its_owners_is_gone(yard: Yard) -> None:
    def manifest(kind: str, name: str, **metadata: object) -> KindObject:
        spec: dict[str, object] = {"replicas": 0, "inference": {"policy": "first"}}
        if kind == "InferencePool":
            spec = {"model": {"path": "/models/tiny"}, "engine": {"external": {}}}
        meta = {"name": name, **metadata}
        return parse_object({"apiVersion": "rollyard.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec})

    async with yard.client() as client:
        owners = [(await client.apply(manifest("InferencePool", name)))[1] for name in ("first", "second")]
        references = [
            {"apiVersion": o.api_version, "kind": o.kind, "name": o.metadata.name, "uid": o.metadata.uid}
            for o in owners
        ]
        await client.apply(manifest("RolloutPool", "owned", ownerReferences=references))
        foreign = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u"}
        await client.apply(manifest("RolloutPool", "kept", ownerReferences=[references[0], foreign]))

        async def exists(kind: type[InferencePool | RolloutPool], name: str) -> bool:
            try:
                await client.get(kind.key_of("default", name))
            except NotFound:
                return False
            return True

        async def gone(kind: type[InferencePool | RolloutPool], name: str) -> bool:
            return not await exists(kind, name)

        await client.delete(owners[0].key)
        await yard.until(lambda: gone(InferencePool, "first"))
        await yard.rollyard("wait", "rp", "owned", "--for", "condition=Updated")
        assert await exists(RolloutPool, "owned")
        await client.delete(owners[1].key)
        await yard.until(lambda: gone(RolloutPool, "owned"))
        assert await exists(RolloutPool, "kept")
    out, _ = await yard.rollyard("events")
    assert "deleted, because its owners are gone: InferencePool first, InferencePool second" in out
