"""Text of a turn as it is streamed: however the ids arrive, the pieces are the text of all ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from rollyard.gateway.session.streaming_text import Detokenizer, StreamingText
from rollyard.tokens.tool_calls import marks_of
from rollyard.tokens.tool_calls.parser_choice import BUILT_IN
from tests.tokens.tool_calls.family_forms import FORMS, FamilyForm

WORDS = ("plain", " text ", "é", "€", "😀", "👩‍🚀", "日本", "\n", "")


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


def streamed(tokenizer: Tokenizer, chunks: list[list[int]]) -> str:
    detokenizer = Detokenizer(lambda ids: tokenizer.decode(list(ids)))
    return "".join([*(detokenizer.feed(chunk) for chunk in chunks), detokenizer.flush()])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=30), st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_the_size_of_the_chunks_has_no_effect(tokenizer: Tokenizer, words: list[str], sizes: list[int]) -> None:
    ids: list[int] = tokenizer.encode("".join(words), add_special_tokens=False).ids
    chunks, at = [], 0
    while at < len(ids):
        size = sizes[len(chunks) % len(sizes)]
        chunks.append(ids[at : at + size])
        at += size
    assert streamed(tokenizer, chunks) == tokenizer.decode(ids) == "".join(words)


def test_a_long_chunk_that_ends_within_a_character_is_sent_up_to_it(tokenizer: Tokenizer) -> None:
    ids: list[int] = tokenizer.encode("a long answer with many ids in it, and then 😀!", add_special_tokens=False).ids
    assert len(ids) > 20
    face = len(tokenizer.encode("😀!", add_special_tokens=False).ids)
    assert streamed(tokenizer, [ids[: 1 - face], ids[1 - face :]]).endswith("then 😀!")


def test_ids_that_are_no_text_are_sent_in_the_end(tokenizer: Tokenizer) -> None:
    broken: list[int] = tokenizer.encode("😀", add_special_tokens=False).ids[:1]
    detokenizer = Detokenizer(lambda ids: tokenizer.decode(list(ids)))
    sent = [detokenizer.feed(broken) for _ in range(40)]
    assert not any(sent[:15])
    assert "".join(sent)


@pytest.mark.parametrize("family", FORMS.values(), ids=list(FORMS))
def test_a_turn_that_is_streamed_is_the_turn_that_is_not(family: FamilyForm) -> None:
    parser = BUILT_IN[family.parser].make(())
    call, (opening, closing) = family.write([("get", {"path": "a {b} [c]"}), ("stop", {})]), family.think or ("", "")
    prose = f"{opening}The tag {parser.marks[0]} begins a call.{closing}\n4" if opening and family.prose else "4"
    thought = f"{opening}I look.{closing}\n\n" if opening else ""
    for text in ("It is 4.", call, f"I look.\n{call}", thought + call, f"{thought}It is {{4}} or [5].\n", prose):
        turn = parser.parse(text)
        shown = turn.content if turn.shown is None else turn.shown
        ids = list(map(ord, text))
        for size in (1, 3, 10_000):
            stream = StreamingText(lambda ids: "".join(map(chr, ids)), [], [], marks=marks_of(parser), trim=True)
            sent = "".join(stream.feed(ids[at : at + size]) for at in range(0, len(ids), size))
            assert sent + stream.finish(shown) == shown
