from __future__ import annotations

import random
import unicodedata
from pathlib import Path

import pytest
from tokenizers import normalizers

from rollyard.core.errors import ContextExceeded
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import Conversation
from rollyard.tokens.token_length import TokenLength
from tests.support.small_tokenizers import SHAPES, TEXT, fitted
from tests.support.template_families import FAMILIES

FAMILY = FAMILIES[0]
PARTS = [*TEXT[:4], " ", "\n", "\t  ", "é", "ế" * 20, "한글" * 20, "🎉", "\x00", "zqxj" * 9, "\u0301" * 30]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("composes", [False, True])
def test_no_text_has_fewer_tokens_than_the_bound(shape: str, composes: bool) -> None:
    tokenizer = fitted(shape, FAMILY)
    fast = tokenizer.backend_tokenizer
    if composes and fast.normalizer is None:
        fast.normalizer = normalizers.NFC()
    bound, chosen = TokenLength(tokenizer, fast), random.Random(shape)
    for _ in range(300):
        text = "".join(chosen.choice(PARTS) * chosen.randint(1, 9) for _ in range(chosen.randint(0, 6)))
        text = chosen.choice([text, unicodedata.normalize("NFD", text), text.replace(" ", "")])
        assert bound.least(text) <= len(fast.encode(text, add_special_tokens=False).ids), text
    known = bound.least("word " * 1000) > 0
    assert known is (shape in ("byte-level BPE", "digits BPE", "metaspace BPE")), "the others lose text"


def test_a_text_that_cannot_fit_is_refused_untokenised(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template, tokenised = ChatTemplate.load(model_dir), []
    encode = template.encode
    monkeypatch.setattr(template, "encode", lambda text: tokenised.append(len(text)) or encode(text))
    conversation = Conversation(template, [{"role": "user", "content": "word " * 800_000}])
    with pytest.raises(ContextExceeded, match=r"at least 25.... tokens, and the context 4096") as refused:
        conversation.prompt_ids(4096)
    assert (refused.value.context, tokenised) == (4096, [])
    conversation.replace_unanswered([{"role": "user", "content": "word"}])
    assert len(conversation.prompt_ids(4096)) < 100, "the conversation goes on with another text"
