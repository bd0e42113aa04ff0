"""Texts become the same ids by whichever way of the tokenizer they go."""

from __future__ import annotations

from pathlib import Path

from rollyard.tokens.template import LONG_CHARACTERS, ChatTemplate


def test_long_texts_and_short_ones_are_the_same_ids(model_dir: Path) -> None:
    template = ChatTemplate.load(model_dir)
    for piece in ("What is 3 * 4?\n", "漢字 🎉 ", "<|im_start|>user\n", "\ud7ff \x00"):
        text = piece * (LONG_CHARACTERS // len(piece) + 1)
        for there in (text[: LONG_CHARACTERS - 1], text):
            assert template.encode(there) == template._tokenizer.encode(there, add_special_tokens=False)
