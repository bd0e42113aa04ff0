"""Where the server is and who we are, read from a kubeconfig as kubectl has it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollyard.client.kubeconfig import VARIABLE, load_context
from rollyard.core.errors import BadRequest


def config(**cluster: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "second",
        "clusters": [
            {"name": "a", "cluster": {"server": "https://a"}},
            {"name": "b", "cluster": {"server": "https://b", **cluster}},
        ],
        "users": [{"name": "me", "user": {"token": "secret"}}],
        "contexts": [
            {"name": "first", "context": {"cluster": "a", "user": "me"}},
            {"name": "second", "context": {"cluster": "b", "user": "me", "namespace": "ml"}},
        ],
    }


def write(folder: Path, content: Any) -> Path:
    path = folder / "config"
    path.write_text(yaml.safe_dump(content))
    return path


def test_the_current_context_counts(tmp_path: Path) -> None:
    authority = base64.b64encode(b"-----BEGIN").decode()
    found = load_context(write(tmp_path, config(**{"certificate-authority-data": authority})))
    assert (found.url, found.token, found.namespace, found.ca_pem) == ("https://b", "secret", "ml", "-----BEGIN")
    assert found.current_url() == "https://b"


def test_the_endpoint_file_beside_it_is_newer(tmp_path: Path) -> None:
    endpoint = tmp_path / "endpoint.json"
    endpoint.write_text(json.dumps({"url": "https://moved", "epoch": 3}))
    found = load_context(write(tmp_path, config()))
    assert found.current_url() == "https://moved"
    endpoint.write_text("torn {")
    assert found.current_url() == "https://b"
    endpoint.unlink()
    assert found.current_url() == "https://b"


def test_a_link_to_it_leads_to_the_endpoint_file_too(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "endpoint.json").write_text(json.dumps({"url": "https://moved", "epoch": 3}))
    link = tmp_path / "link"
    link.symlink_to(write(data, config()))
    assert load_context(link).current_url() == "https://moved"


def test_it_is_found_by_variable_then_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(BadRequest, match=r"no kubeconfig: .*/\.rollyard/config: .*start one with `rollyard serve"):
        load_context()
    (tmp_path / ".rollyard").mkdir()
    write(tmp_path / ".rollyard", config())
    assert load_context().namespace == "ml"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    with pytest.raises(BadRequest, match=r"no kubeconfig: .*/none"):
        load_context()


@pytest.mark.parametrize(
    "content",
    [
        None,
        "text",
        {},
        {**config(), "current-context": "third"},
        {**config(), "contexts": {"name": "second"}},
        {**config(), "clusters": ["b"]},
        {**config(), "clusters": [{"name": "b", "cluster": "https://b"}]},
        {**config(), "users": [{"name": "me", "user": {"password": "x"}}]},
        config(**{"certificate-authority-data": "not base64!"}),
        [1, 2],
    ],
)
def test_what_is_no_kubeconfig_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(BadRequest, match="is not a kubeconfig with a token"):
        load_context(write(tmp_path, content))


def test_what_is_no_yaml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("{ [")
    with pytest.raises(BadRequest, match="is not a kubeconfig"):
        load_context(path)
