"""A tokenizer as it is used here gives what transformers gives, and all of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rollyard.core.errors import TemplateUnusable
from rollyard.tokens.chat_template import ChatTemplate
from tests.support.lazy_module import LazyModule

if TYPE_CHECKING:
    import transformers
else:
    transformers = LazyModule("transformers")

TEXT = "Ünïcode, <tool_call> 12 + 30,\n\n  and more of it. " * 40


def test_a_file_that_asks_for_truncation_and_padding_cuts_and_adds_nothing(model_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_dir, folder)
    told = json.loads((folder / "tokenizer.json").read_text())
    told["truncation"] = {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}
    told["padding"] = {
        "strategy": {"Fixed": 4000}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>",
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(told))
    template, theirs = ChatTemplate.load(folder), transformers.AutoTokenizer.from_pretrained(model_dir)
    ids = template.encode(TEXT)
    assert ids == theirs.encode(TEXT, add_special_tokens=False)
    assert len(ids) > 16
    ended = [*ids, *template.stop_ids]
    assert template.decode(ended) == theirs.decode(ended, clean_up_tokenization_spaces=False)
    assert template.decode(ended, skip_special=True) == TEXT


def edited(name: str, **fields: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        found = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
        (folder / name).write_text(json.dumps({**found, **fields}))

    return edit


def other_end(folder: Path) -> None:
    edited("tokenizer_config.json", eos_token="<tool_call>")(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


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
def test_what_no_call_should_be_the_first_to_see(
    model_dir: Path, tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_dir, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    spoil(folder)
    with pytest.raises(TemplateUnusable, match=rf"^TemplateUnusable: the chat template .*{words}.* \({folder}\)$"):
        ChatTemplate.load(folder)
