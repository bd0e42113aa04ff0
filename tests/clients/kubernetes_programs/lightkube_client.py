"""A pool's life by lightkube: KUBECONFIG and NAMESPACE are in the environment."""

import os

from lightkube import ApiError, Client, KubeConfig
from lightkube.generic_resource import create_namespaced_resource, load_in_cluster_generic_resources
from lightkube.models.autoscaling_v1 import ScaleSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event, Namespace
from lightkube.types import PatchType

NAMESPACE = os.environ["NAMESPACE"]
client = Client(config=KubeConfig.from_file(os.environ["KUBECONFIG"]), namespace=NAMESPACE)
load_in_cluster_generic_resources(client)
RolloutPool = create_namespaced_resource("rollyard.dev", "v1alpha1", "RolloutPool", "rolloutpools")


def strategic_patch_status() -> int:
    try:
        client.patch(RolloutPool, "l", {"spec": {"suspend": True}}, patch_type=PatchType.STRATEGIC)
    except ApiError as error:
        return error.response.status_code
    return 200


spec = {"replicas": 0, "inference": {"policy": "p"}}
client.create(RolloutPool(metadata={"name": "l", "labels": {"team": "a"}}, spec=spec))
client.wait(RolloutPool, "l", for_conditions=["Updated"])
assert [p.metadata.name for p in client.list(RolloutPool, labels={"team": ["a", "b"]}, chunk_size=1)] == ["l"]
assert client.patch(RolloutPool, "l", {"spec": {"suspend": True}}, patch_type=PatchType.MERGE).spec["suspend"] is True
operations = [{"op": "test", "path": "/spec/suspend", "value": True}, {"op": "remove", "path": "/spec/suspend"}]
assert not client.patch(RolloutPool, "l", operations, patch_type=PatchType.JSON).spec["suspend"]
assert strategic_patch_status() == 415
scale = client.get(RolloutPool.Scale, "l")
assert scale.spec.replicas in (0, None)
client.replace(RolloutPool.Scale(metadata=ObjectMeta(name="l", namespace=NAMESPACE), spec=ScaleSpec(replicas=0)), "l")
assert NAMESPACE in [n.metadata.name for n in client.list(Namespace)]
assert [e for e in client.list(Event)]
for type, pool in client.watch(RolloutPool):
    assert (type, pool.metadata.name) == ("ADDED", "l")
    break
client.deletecollection(RolloutPool)
print("done")
