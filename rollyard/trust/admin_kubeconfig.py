"""`admin.kubeconfig`: a kubeconfig in the standard form, for kubectl and client libraries of Kubernetes."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from rollyard.trust.secret_files import write_secret


def write_kubeconfig(path: Path, url: str, ca_pem: str, token: str) -> None:
    """Write the file with mode 0600, atomically."""
    authority = base64.b64encode(ca_pem.encode()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "rollyard", "cluster": {"server": url, "certificate-authority-data": authority}}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "rollyard", "context": {"cluster": "rollyard", "user": "admin", "namespace": "default"}}],
        "current-context": "rollyard",
    }
    write_secret(path, yaml.safe_dump(config, sort_keys=False))
