"""Writes and lists of objects, as clients of Kubernetes make them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rollyard.api.list_pages import KEPT_LISTS
from rollyard.api.openapi import document
from rollyard.api.resources import GROUP_VERSIONS, RESOURCES
from rollyard.kinds.base import FINALIZER, ConditionUpdate, set_conditions
from rollyard.kinds.foreign import Service
from tests.support import make
from tests.support.outside_api import Api, Serve

POOLS = "/apis/rollyard.dev/v1alpha1/namespaces/default/rolloutpools"
OWNER = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "name": "c",
    "uid": "u",
    "controller": True,
    "blockOwnerDeletion": True,
}


def body(name: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "spec": {"replicas": 0, "inference": {"policy": "policy"}}}


async def patch(api: Api, path: str, change: Any, form: str = "merge") -> tuple[int, Any, str]:
    headers = {"Content-Type": f"application/{form}-patch+json"}
    async with api.http.patch(api.url + path, json=change, headers=headers) as done:
        return done.status, await done.json(), ", ".join(done.headers.getall("Warning", []))


async def test_finalizers_and_owners_of_users_are_kept_and_ours_stays(serving: Serve) -> None:
    async with serving() as api:
        status, made = await api.ask("POST", POOLS, body("p", finalizers=["example.com/hold"], ownerReferences=[OWNER]))
        assert (status, made["metadata"]["finalizers"], made["metadata"]["ownerReferences"]) == (
            201,
            ["example.com/hold"],
            [OWNER],
        )
        stored = await api.store.objects.get(_key("p"))
        meta = stored.metadata.model_copy(update={"finalizers": [*stored.metadata.finalizers, FINALIZER]})
        await api.store.objects.update(stored.model_copy(update={"metadata": meta}), "spec")  # as the reconciler does
        status, now, warning = await patch(api, f"{POOLS}/p", {"metadata": {"finalizers": ["example.com/two"]}})
        assert (status, now["metadata"]["finalizers"]) == (200, [FINALIZER, "example.com/two"])
        assert f"{FINALIZER} stays until the pool's jobs have ended" in warning
        status, now, _ = await patch(api, f"{POOLS}/p", {"metadata": {"ownerReferences": [{**OWNER, "name": "d"}]}})
        assert now["metadata"]["ownerReferences"][0]["name"] == "d"
        status, now = await api.ask("DELETE", f"{POOLS}/p")
        assert (status, "deletionTimestamp" in now["metadata"]) == (200, True)
        status, told, _ = await patch(api, f"{POOLS}/p", {"metadata": {"finalizers": ["example.com/new"]}})
        assert (status, "no new finalizer" in told["message"]) == (422, True)
        two = [{"op": "remove", "path": "/metadata/finalizers/1"}]
        assert (await patch(api, f"{POOLS}/p", two, "json"))[1]["metadata"]["finalizers"] == [FINALIZER]
        assert (await api.ask("POST", POOLS, body("q", finalizers=["no name/"])))[0] == 422
        assert (await api.ask("POST", POOLS, body("q", ownerReferences=[OWNER, {**OWNER, "uid": "v"}])))[0] == 422


def _key(name: str) -> Any:
    return next(r.kind for r in RESOURCES if r.word == "RolloutPool").key_of("default", name)


async def test_an_owner_that_this_server_cannot_know_is_named_in_a_warning(serving: Serve) -> None:
    async with serving() as api, api.http.post(api.url + POOLS, json=body("p", ownerReferences=[OWNER])) as made:
        texts = made.headers.getall("Warning")
        assert any("no ConfigMap of v1, so the object is not deleted with it" in text for text in texts)


async def test_a_deletion_with_preconditions_that_do_not_hold_is_a_conflict(serving: Serve) -> None:
    async with serving() as api:
        _, made = await api.ask("POST", POOLS, body("p"))
        for wrong in ({"resourceVersion": "1"}, {"uid": "another"}):
            for dry in ({}, {"dryRun": ["All"]}):
                status, told = await api.ask("DELETE", f"{POOLS}/p", {"preconditions": wrong, **dry})
                assert (status, told["reason"]) == (409, "Conflict"), (wrong, dry)
        assert (await api.ask("DELETE", f"{POOLS}/p", {"preconditions": {"uid": 7}}))[0] == 400
        right = {name: made["metadata"][name] for name in ("uid", "resourceVersion")}
        status, told = await api.ask("DELETE", f"{POOLS}/p", {"preconditions": right})
        assert (status, told["status"], told["details"]["uid"]) == (200, "Success", right["uid"])


async def test_a_deletion_that_would_orphan_jobs_is_refused(serving: Serve) -> None:
    async with serving() as api:
        await api.ask("POST", POOLS, body("p"))
        for path, options in (
            (f"{POOLS}/p", {"propagationPolicy": "Orphan"}),
            (f"{POOLS}/p", {"orphanDependents": True}),
            (f"{POOLS}/p?propagationPolicy=Orphan", None),
            (f"{POOLS}?orphanDependents=true", None),
        ):
            status, told = await api.ask("DELETE", path, options)
            assert (status, "cannot outlive" in told["message"]) == (422, True), path
        assert (await api.ask("GET", f"{POOLS}/p"))[0] == 200


async def test_answers_about_allocations_say_that_slurm_is_away(serving: Serve) -> None:
    allocations = POOLS.replace("rolloutpools", "allocations")

    async def warning(path: str) -> str:
        async with api.http.get(api.url + path) as done:
            assert done.status == 200
            return done.headers.get("Warning", "")

    async with serving() as api:
        away = ConditionUpdate("SlurmReachable", False, "NoAnswer", "Slurm's queue is unknown since noon (it hangs)")
        pool = make.rollout_pool("elsewhere", metadata={"namespace": "lab"})
        await api.store.objects.create(pool)
        await api.store.objects.create(make.allocation("swe-rp-0"))
        for path in (allocations, f"{allocations}/swe-rp-0", "/apis/rollyard.dev/v1alpha1/allocations"):
            assert await warning(path) == ""
        stored = await api.store.objects.get(pool.key)
        conditions = set_conditions([], [away], generation=1, now=datetime.now(UTC))
        status = stored.status.model_copy(update={"conditions": conditions})
        await api.store.objects.update(stored.model_copy(update={"status": status}), "status")
        for path in (allocations, f"{allocations}/swe-rp-0", "/apis/rollyard.dev/v1alpha1/allocations"):
            assert "Slurm's queue is unknown since noon (it hangs). States, nodes and times" in await warning(path)
        assert await warning(POOLS) == "", "the conditions of a pool say it"


async def test_a_dry_run_with_an_old_version_is_a_conflict_too(serving: Serve) -> None:
    async with serving() as api:
        await api.ask("POST", POOLS, body("p"))
        old = {"metadata": {"resourceVersion": "1"}, "spec": {"suspend": True}}
        for query in ("", "?dryRun=All"):
            status, told, _ = await patch(api, f"{POOLS}/p{query}", old)
            assert (status, "please apply your changes to the latest version" in told["message"]) == (409, True)


async def test_the_status_is_written_by_rollyard_alone(serving: Serve) -> None:
    async with serving() as api:
        await api.ask("POST", POOLS, body("p"))
        change = {"status": {"nextIndex": 7}}
        status, told, _ = await patch(api, f"{POOLS}/p/status", change)
        assert (status, "change the spec instead" in told["message"]) == (403, True)
        assert (await api.ask("PUT", f"{POOLS}/p/status", change))[0] == 403
        status, now, _ = await patch(api, f"{POOLS}/p", change)
        assert (status, now["status"]["nextIndex"]) == (200, 0)


async def test_a_patch_in_another_dialect_names_the_ones_that_work(serving: Serve) -> None:
    async with serving() as api:
        await api.ask("POST", POOLS, body("p"))
        for form in ("strategic-merge-patch+json", "apply-patch+yaml", "json"):
            headers = {"Content-Type": f"application/{form}"}
            async with api.http.patch(f"{api.url}{POOLS}/p", data=b"{}", headers=headers) as done:
                told = await done.json()
                assert (done.status, told["reason"]) == (415, "UnsupportedMediaType")
                assert "application/json-patch+json, application/merge-patch+json" in told["message"]


async def test_an_unknown_field_is_refused_warned_of_or_ignored_as_the_caller_says(serving: Serve) -> None:
    async with serving() as api:
        wrong = {**body("p"), "spec": {**body("p")["spec"], "replcas": 1, "stages": {"run": {"wrkers": 2}}}}
        assert (await api.ask("POST", f"{POOLS}?fieldValidation=Strict", wrong))[0] == 422
        assert (await api.ask("POST", POOLS, wrong))[0] == 422
        async with api.http.post(f"{api.url}{POOLS}?fieldValidation=Warn&dryRun=All", json=wrong) as made:
            warnings = made.headers.getall("Warning")
            assert made.status == 201
            assert sorted(w for w in warnings if "unknown field" in w) == [
                '299 - "unknown field \\"spec.replcas\\""',
                '299 - "unknown field \\"spec.stages.run.wrkers\\""',
            ]
        many = {**body("p"), "spec": {**body("p")["spec"], **{f"wrong{n}": n for n in range(150)}}}
        async with api.http.post(f"{api.url}{POOLS}?fieldValidation=Warn&dryRun=All", json=many) as made:
            assert (made.status, len(made.headers.getall("Warning"))) == (201, 20)
            assert "more warnings" in made.headers.getall("Warning")[-1]
        async with api.http.post(f"{api.url}{POOLS}?fieldValidation=Ignore", json=wrong) as made:
            assert made.status == 201
            assert not any("unknown field" in text for text in made.headers.getall("Warning", []))


async def test_pages_show_one_state_of_a_list_while_it_changes(serving: Serve) -> None:
    async with serving() as api:
        for name in "abcde":
            await api.ask("POST", POOLS, body(name))
        _, page = await api.ask("GET", f"{POOLS}?limit=2")
        assert (len(page["items"]), page["metadata"]["remainingItemCount"]) == (2, 3)
        names, first = [i["metadata"]["name"] for i in page["items"]], page["metadata"]
        await api.ask("DELETE", f"{POOLS}/d")
        await api.ask("POST", POOLS, body("cc"))
        while token := page["metadata"].get("continue"):
            _, page = await api.ask("GET", f"{POOLS}?limit=2&continue={token}")
            names += [i["metadata"]["name"] for i in page["items"]]
            assert page["metadata"]["resourceVersion"] == first["resourceVersion"]
        assert names == list("abcde")
        token = first["continue"]
        assert (await api.ask("GET", f"{POOLS}?labelSelector=x&continue={token}"))[0] == 400
        for _ in range(KEPT_LISTS):
            await api.ask("GET", f"{POOLS}?limit=1")
        status, told = await api.ask("GET", f"{POOLS}?continue={token}")
        assert (status, told["reason"]) == (410, "Expired")


async def test_a_table_has_as_much_of_each_object_as_is_asked_for(serving: Serve) -> None:
    async with serving() as api:
        await api.ask("POST", POOLS, body("p"))
        accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}

        async def row(query: str) -> Any:
            async with api.http.get(f"{api.url}{POOLS}{query}", headers=accept) as answer:
                table = await answer.json()
                assert table["columnDefinitions"][0]["format"] == "name"
                return table["rows"][0]["object"]

        assert await row("?includeObject=None") is None
        assert (await row(""))["kind"] == "PartialObjectMetadata"
        assert (await row("?includeObject=Object"))["spec"]["replicas"] == 0
        partial = {"Accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}
        async with api.http.get(api.url + POOLS, headers=partial) as answer:
            (item,) = (await answer.json())["items"]
            assert (item["metadata"]["name"], "spec" in item) == ("p", False)


async def test_a_name_is_made_from_a_prefix_and_many_are_deleted_at_once(serving: Serve) -> None:
    async with serving() as api:
        prefix = {"metadata": {"generateName": "gen-", "labels": {"of": "many"}}, "spec": body("x")["spec"]}
        made = [await api.ask("POST", POOLS, prefix) for _ in range(3)]
        names = {obj["metadata"]["name"] for _, obj in made}
        assert len(names) == 3
        assert all(name.startswith("gen-") and len(name) == 9 for name in names)
        await api.ask("POST", POOLS, body("other"))
        status, gone = await api.ask("DELETE", f"{POOLS}?labelSelector=of%3Dmany")
        assert (status, {o["metadata"]["name"] for o in gone["items"]}) == (200, names)
        _, left = await api.ask("GET", POOLS)
        assert [o["metadata"]["name"] for o in left["items"]] == ["other"]


async def test_clients_find_health_version_and_every_kind(serving: Serve) -> None:
    async with serving() as api:
        for path in ("/livez", "/readyz", "/healthz", "/livez/ping", "/readyz/store"):
            async with api.http.get(api.url + path) as answer:
                assert (answer.status, await answer.text()) == (200, "ok")
        async with api.http.get(f"{api.url}/readyz?verbose&exclude=store") as answer:
            assert await answer.text() == "[+]ping ok\n[+]store excluded: ok\nreadyz check passed\n"
        assert (await api.ask("GET", "/readyz/nothing"))[0] == 404
        _, version = await api.ask("GET", "/version")
        fields = {
            "major",
            "minor",
            "gitVersion",
            "gitCommit",
            "gitTreeState",
            "buildDate",
            "goVersion",
            "compiler",
            "platform",
        }
        assert fields <= version.keys()
        _, index = await api.ask("GET", "/openapi/v3")
        for path, entry in index["paths"].items():
            async with api.http.get(api.url + entry["serverRelativeURL"]) as answer:
                assert (answer.status, "immutable" in answer.headers["Cache-Control"]) == (200, True), path
                tag = answer.headers["ETag"]
            async with api.http.get(f"{api.url}/openapi/v3/{path}", headers={"If-None-Match": tag}) as answer:
                assert (answer.status, await answer.read()) == (304, b"")
        assert (await api.ask("GET", "/openapi/v3/apis/nothing/v1"))[0] == 404


@pytest.mark.parametrize("group_version", GROUP_VERSIONS)
def test_each_document_names_the_kinds_of_its_api_and_refers_to_schemas_that_it_has(group_version: str) -> None:
    found = document(group_version)
    schemas = found["components"]["schemas"]
    kinds = {gvk["kind"] for schema in schemas.values() for gvk in schema.get("x-kubernetes-group-version-kind", ())}
    served = [r for r in RESOURCES if r.group_version == group_version]
    assert {r.word for r in served} <= kinds
    for resource in served:
        assert resource.kind is Service or any(p.endswith(f"/{resource.kind.PLURAL}/{{name}}") for p in found["paths"])

    def references(value: Any) -> set[str]:
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        own = {value["$ref"].rpartition("/")[2]} if isinstance(value, dict) and "$ref" in value else set()
        return own.union(*map(references, parts))

    assert references(found) <= schemas.keys()


def test_kubectl_finds_that_patches_are_validated_by_the_server() -> None:
    paths = document("rollyard.dev/v1alpha1")["paths"]
    patched = paths["/apis/rollyard.dev/v1alpha1/namespaces/{namespace}/rolloutpools/{name}"]["patch"]
    assert {"fieldValidation", "dryRun"} <= {p["name"] for p in patched["parameters"]}
    assert patched["x-kubernetes-group-version-kind"]["kind"] == "RolloutPool"
