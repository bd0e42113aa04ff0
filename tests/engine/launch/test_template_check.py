"""A model whose tokenizer or template will not do is refused while its engine starts."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rollyard.engine.launch.template_check import check_template
from rollyard.engine.process.child_process import EngineFailed
from rollyard.kinds.engine_spec import ModelSpec

pytestmark = pytest.mark.slow(40)


def edited(name: str, **fields: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        found = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
        (folder / name).write_text(json.dumps({**found, **fields}))

    return edit


def other_end(folder: Path) -> None:
    edited("tokenizer_config.json", eos_token="<tool_call>")(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


@pytest.fixture
def folder(model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROLLYARD_CACHE", str(tmp_path / "cache"))
    names = shutil.ignore_patterns("*.safetensors")
    return Path(shutil.copytree(model_dir, tmp_path / "model", ignore=names))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: (f / "chat_template.jinja").write_text("{{ m.content }"), "line 1: unexpected '}'"),
        (lambda f: (f / "chat_template.jinja").unlink(), "is missing; add chat_template.jinja"),
        (edited("config.json", vocab_size=1000), "a tokenizer larger than the model: .* has vocab_size 1000"),
        (other_end, "never ends a turn with <tool_call>, .* name the token that it ends turns with as eos_token"),
    ],
    ids=["syntax", "no template", "size", "end"],
)
async def test_what_no_call_should_be_the_first_to_see(folder: Path, spoil: Callable[[Path], None], words: str) -> None:
    spoil(folder)
    with pytest.raises(EngineFailed, match=rf"^TemplateUnusable: the chat template .*{words}.* \({folder}\)$"):
        await check_template(ModelSpec(path=str(folder)))


async def test_a_good_template_is_looked_at_once_and_again_when_it_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ModelSpec(path=str(folder))
    await check_template(model)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/no/python")
        await check_template(model)
    (folder / "chat_template.jinja").write_text("{{ nothing.at.all }}")
    with pytest.raises(EngineFailed, match="fails on a conversation of one question"):
        await check_template(model)


async def test_a_template_for_tools_that_came_later_is_looked_at_too(folder: Path) -> None:
    model = ModelSpec(path=str(folder))
    await check_template(model)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ broken }")
    with pytest.raises(EngineFailed, match="line 1: unexpected '}'"):
        await check_template(model)


async def test_the_check_proves_the_tool_calls_and_keeps_the_proof_for_each_parser(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ModelSpec(path=str(folder))
    proof = await check_template(model)
    assert proof is not None
    assert (proof.status, proof.reason, proof.parser) == ("True", "ReadBack", None)
    wrong = await check_template(ModelSpec(path=str(folder), tool_parser="mistral"))
    assert wrong is not None
    assert (wrong.status, wrong.reason, wrong.parser) == ("False", "CallsUnreadable", "mistral")
    monkeypatch.setattr(sys, "executable", "/no/python")
    assert await check_template(model) == proof


async def test_half_a_proof_in_the_cache_is_made_again(folder: Path, tmp_path: Path) -> None:
    model = ModelSpec(path=str(folder))
    proof = await check_template(model)
    (kept,) = (tmp_path / "cache" / "templates").iterdir()
    kept.write_text(kept.read_text()[:20])
    assert await check_template(model) == proof
