"""A tokenizer as it is used here gives what transformers gives, and all of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

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
