"""A model whose tokenizer or template will not do is refused while its engine starts."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from rollyard.engine.launch.template_check import check_template
from rollyard.engine.process.child_process import EngineFailed
from rollyard.kinds.engine_spec import ModelSpec

pytestmark = pytest.mark.slow(20)


@pytest.fixture
def folder(model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROLLYARD_CACHE", str(tmp_path / "cache"))
    names = shutil.ignore_patterns("*.safetensors")
    return Path(shutil.copytree(model_dir, tmp_path / "model", ignore=names))


async def test_a_good_template_is_looked_at_once_and_again_when_it_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look is a process that imports transformers, so this test has all that begins with a good template."""
    model = ModelSpec(path=str(folder))
    proof = await check_template(model)
    assert proof is not None
    assert (proof.status, proof.reason, proof.parser) == ("True", "ReadBack", None)
    wrong = await check_template(ModelSpec(path=str(folder), tool_parser="mistral"))
    assert wrong is not None
    assert (wrong.status, wrong.reason, wrong.parser) == ("False", "CallsUnreadable", "mistral")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/no/python")
        assert await check_template(model) == proof, "there is a proof for each parser"
    for kept in (Path(os.environ["ROLLYARD_CACHE"]) / "templates").iterdir():
        kept.write_text(kept.read_text()[:20])
    assert await check_template(model) == proof, "half a proof is made again"

    more = folder / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("{{ broken }")
    with pytest.raises(EngineFailed, match=rf"^TemplateUnusable: .* line 1: unexpected '}}' \({folder}\)$"):
        await check_template(model)
    shutil.rmtree(more)
    (folder / "chat_template.jinja").write_text("{{ nothing.at.all }}")
    with pytest.raises(EngineFailed, match="fails on a conversation of one question"):
        await check_template(model)
