"""Exit codes of `rollyard diff` when it cannot compare."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from rollyard.cli.main import cli


def kubeconfig(authority: str) -> str:
    cluster = {
        "server": "https://127.0.0.1:1",
        "certificate-authority-data": base64.b64encode(authority.encode()).decode(),
    }
    return yaml.safe_dump(
        {
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "c", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        }
    )


@pytest.mark.parametrize(
    ("config", "manifest"),
    [
        (None, "pools.yaml"),
        ("{ [", "pools.yaml"),
        (kubeconfig("no certificate"), "pools.yaml"),
        (kubeconfig(""), "nowhere.yaml"),
        (kubeconfig(""), "binary.yaml"),
    ],
    ids=["no kubeconfig", "a torn one", "one with no certificate", "no manifest", "one that is not text"],
)
def test_whatever_fails_it_does_not_say_that_they_differ(
    config: str | None, manifest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if config is not None:
        Path("config").write_text(config)
    Path("pools.yaml").write_text("")
    Path("binary.yaml").write_bytes(b"\xff")
    result = CliRunner().invoke(cli, ["diff", "--kubeconfig", "config", "-f", manifest])
    assert result.exit_code == 2, result.output
