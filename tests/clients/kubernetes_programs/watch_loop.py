"""Watches pools in a loop, as an operator in Python does: KUBECONFIG and NAMESPACE are in the environment.

It prints each event as a line of JSON, and ends when it has seen a pool named `end`.
"""

import json
import os
import sys
import time

import urllib3
from kubernetes import client, config, watch

config.load_kube_config(os.environ["KUBECONFIG"])
pools = client.CustomObjectsApi()
WHERE = ("rollyard.dev", "v1alpha1", os.environ["NAMESPACE"], "rolloutpools")
AWAY = (client.ApiException, urllib3.exceptions.HTTPError)


def say(**event):
    print(json.dumps(event), flush=True)


def listed():
    """List until the server is there."""
    while True:
        try:
            found = pools.list_namespaced_custom_object(*WHERE)
        except AWAY as error:
            say(away=f"{type(error).__name__} {getattr(error, 'status', '')}")
            time.sleep(0.2)
            continue
        say(listed={pool["metadata"]["name"]: pool["metadata"]["resourceVersion"] for pool in found["items"]})
        return found["metadata"]["resourceVersion"]


version = listed()
while True:
    watching = watch.Watch()
    try:
        for event in watching.stream(
            pools.list_namespaced_custom_object, *WHERE, resource_version=version, timeout_seconds=5
        ):
            metadata = event["object"]["metadata"]
            version = metadata["resourceVersion"]
            if event["type"] == "BOOKMARK":
                continue
            say(type=event["type"], name=metadata["name"], version=version)
            if metadata["name"] == "end":
                sys.exit()
        say(ended=version)
    except AWAY as error:
        say(away=f"{type(error).__name__} {getattr(error, 'status', '')}")
        if getattr(error, "status", None) == 410:
            version = listed()
        time.sleep(0.2)
