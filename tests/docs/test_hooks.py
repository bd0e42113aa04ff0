"""The hooks of pre-commit run what scripts/check runs, from .venv and without a download."""

from __future__ import annotations

import yaml

from tests.docs.blocks import ROOT


def test_each_hook_is_a_step_of_the_check() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    steps = (ROOT / "scripts" / "check").read_text().splitlines()
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    for hook in config["repos"][0]["hooks"]:
        command = hook["entry"].removeprefix(".venv/bin/").replace(" --force-exclude", "")
        assert hook["entry"].startswith(".venv/bin/")
        assert any(step.startswith(command) for step in steps), command
