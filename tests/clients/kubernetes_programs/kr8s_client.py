"""A pool's life by kr8s: KUBECONFIG and NAMESPACE are in the environment."""

import os

import kr8s
from kr8s.objects import new_class

NAMESPACE = os.environ["NAMESPACE"]
api = kr8s.api(kubeconfig=os.environ["KUBECONFIG"])
RolloutPool = new_class("RolloutPool", "rollyard.dev/v1alpha1", namespaced=True, scalable=True)
assert api.version()["minor"]
pool = RolloutPool(
    {
        "metadata": {"name": "r", "namespace": NAMESPACE, "labels": {"team": "a"}},
        "spec": {"replicas": 0, "inference": {"policy": "p"}},
    },
    api=api,
)
pool.create()
assert pool.exists()
pool.wait("condition=Updated", timeout=60)
pool.label({"tier": "gold"})
pool.annotate({"note": "hello"})
pool.patch({"spec": {"suspend": True}})
pool.patch([{"op": "replace", "path": "/spec/suspend", "value": False}], type="json")
pool.refresh()
assert pool.labels["tier"] == "gold"
assert pool.raw["spec"]["suspend"] is False
assert [p.name for p in api.get("rolloutpools.rollyard.dev", namespace=NAMESPACE, label_selector={"team": "a"})] == [
    "r"
]
assert NAMESPACE in [n.name for n in api.get("namespaces")]
pool.delete(propagation_policy="Foreground")
pool.wait("delete", timeout=60)
assert not pool.exists()
print("done")
