"""A pool's life by the `kubernetes` client: KUBECONFIG and NAMESPACE are in the environment."""

import os
import time

from kubernetes import client, config, dynamic, watch

GROUP, VERSION, PLURAL, NAMESPACE = "rollyard.dev", "v1alpha1", "rolloutpools", os.environ["NAMESPACE"]
config.load_kube_config(os.environ["KUBECONFIG"])
pools = client.CustomObjectsApi()
WHERE = (GROUP, VERSION, NAMESPACE, PLURAL)


def status_of(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except client.ApiException as error:
        return error.status
    raise AssertionError("the call must be refused")


assert client.VersionApi().get_code().minor
assert any(g.name == GROUP for g in client.ApisApi().get_api_versions().groups)
assert "v1" in client.CoreApi().get_api_versions().versions
body = {
    "apiVersion": f"{GROUP}/{VERSION}",
    "kind": "RolloutPool",
    "metadata": {"name": "k", "labels": {"team": "a"}, "finalizers": ["example.com/hold"]},
    "spec": {"replicas": 0, "inference": {"policy": "p"}},
}
made = pools.create_namespaced_custom_object(*WHERE, body)
assert made["metadata"]["finalizers"] == ["example.com/hold"]
assert status_of(pools.create_namespaced_custom_object, *WHERE, body) == 409
assert [p["metadata"]["name"] for p in pools.list_namespaced_custom_object(*WHERE)["items"]] == ["k"]
assert client.CoreV1Api().read_namespace(NAMESPACE).status.phase == "Active"
assert NAMESPACE in [n.metadata.name for n in client.CoreV1Api().list_namespace().items]
operations = [{"op": "add", "path": "/metadata/labels/x", "value": "y"}]
patched = pools.patch_namespaced_custom_object(*WHERE, "k", operations, _content_type="application/json-patch+json")
assert patched["metadata"]["labels"] == {"team": "a", "x": "y"}
patched["spec"]["suspend"] = True
del patched["metadata"]["resourceVersion"]  # the server may have written the status meanwhile
assert pools.replace_namespaced_custom_object(*WHERE, "k", patched)["spec"]["suspend"] is True
stale = {**patched, "metadata": {**patched["metadata"], "resourceVersion": "1"}}
assert status_of(pools.replace_namespaced_custom_object, *WHERE, "k", stale) == 409
options = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="another"))
assert status_of(pools.delete_namespaced_custom_object, *WHERE, "k", body=options) == 409
scale = pools.get_namespaced_custom_object_scale(*WHERE, "k")
assert scale["spec"]["replicas"] == 0
crds = client.ApiextensionsV1Api().list_custom_resource_definition().items
assert sorted(c.spec.names.kind for c in crds) == ["Allocation", "InferencePool", "RolloutPool"]

for _ in range(3):
    events = list(watch.Watch().stream(pools.list_namespaced_custom_object, *WHERE, timeout_seconds=1))
    assert (events[0]["type"], events[0]["object"]["metadata"]["name"]) == ("ADDED", "k")
future = watch.Watch().stream(pools.list_namespaced_custom_object, *WHERE, resource_version="9" * 15, timeout_seconds=5)
assert status_of(list, future) == 410

found = dynamic.DynamicClient(client.ApiClient()).resources.get(api_version=f"{GROUP}/{VERSION}", kind="RolloutPool")
assert [p.metadata.name for p in found.get(namespace=NAMESPACE, label_selector="team in (a)").items] == ["k"]

deleted = pools.delete_namespaced_custom_object(*WHERE, "k")
assert deleted["metadata"]["deletionTimestamp"]
release = {"metadata": {"finalizers": None}}
pools.patch_namespaced_custom_object(*WHERE, "k", release)
deadline = time.monotonic() + 60
while pools.list_namespaced_custom_object(*WHERE)["items"]:
    assert time.monotonic() < deadline
    time.sleep(0.1)
for name in ("m1", "m2"):
    pools.create_namespaced_custom_object(*WHERE, {**body, "metadata": {"name": name, "labels": {"many": "yes"}}})
pools.delete_collection_namespaced_custom_object(*WHERE, label_selector="many=yes")
assert client.EventsV1Api().list_namespaced_event(NAMESPACE).items[0].regarding.kind == "RolloutPool"
assert client.CoreV1Api().list_namespaced_event(NAMESPACE).items[0].involved_object.kind == "RolloutPool"
print("done")
