"""Masks by a grammar: which tokens they allow, what cannot be applied, and what hostile grammars cost."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from rollyard.core.errors import BadRequest
from rollyard.engine.embedded.sampling import SamplingParams, sample
from rollyard.engine.embedded.token_grammar import TokenGrammar, TokenGrammars
from rollyard.tokens.tool_calls import forced_calls
from rollyard.tokens.tool_calls.parser_choice import BUILT_IN

EOS, STOP = 2, 0
VOCAB = 1024


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> TokenGrammars:
    return TokenGrammars(tokenizer, VOCAB, [EOS])


def walk(grammar: TokenGrammar, seed: int = 0, most: int = 200) -> list[int]:
    """Take any allowed token at each step, up to the end."""
    dice, ids = np.random.default_rng(seed), []
    while len(ids) < most:
        allowed = np.flatnonzero(grammar.allowed())
        if grammar.error:
            break
        ids.append(int(dice.choice(allowed)))
        if ids[-1] in (EOS, STOP):
            break
        grammar.accept(ids[-1])
    return ids


def structural(form: Any) -> dict[str, str]:
    return {"structural_tag": json.dumps({"type": "structural_tag", "format": form})}


def test_the_logprob_is_the_models_own_and_the_draw_is_masked() -> None:
    logits = np.array([[0.0, 5.0, 1.0, 200.0], [0.0, 1.0, 2.0, 3.0]], np.float32)
    mask = np.array([True, False, True, False])
    own = logits[0] - np.log(np.exp(logits[0].astype(np.float64)).sum())
    for temperature in (0.0, 0.5, 1.0):
        params = [SamplingParams(temperature=temperature, seed=n) for n in (1, 2)]
        drawn = {sample(logits, params, [n, n], {0: mask})[0].token for n in range(50)}
        first, second = sample(logits, params, [0, 0], {0: mask})
        assert first.logprob == pytest.approx(own[first.token])  # far below what exp of float32 can hold
        assert drawn == ({2} if temperature == 0 else {0, 2})
        assert second == sample(logits, params, [0, 0])[1]


def test_special_tokens_are_one_token_and_stops_end_where_the_grammar_may(
    grammars: TokenGrammars, tokenizer: Tokenizer
) -> None:
    tag = {
        "type": "tag",
        "begin": "<tool_call>\n[",
        "content": {"type": "regex", "pattern": "a/b|c"},
        "end": "]</tool_call>",
    }
    calls = {"type": "tags_with_separator", "tags": [tag], "separator": ", ", "at_least_one": True}
    asked = structural({"type": "sequence", "elements": [{"type": "const_string", "value": ""}, calls]})
    texts = {
        tokenizer.decode(walk(grammars.compile(asked, [STOP]), seed), skip_special_tokens=False) for seed in range(30)
    }
    calls_seen = {text.removesuffix("<|im_end|>").removesuffix("<|endoftext|>") for text in texts}
    assert {"<tool_call>\n[c]</tool_call>", "<tool_call>\n[a/b]</tool_call>"} <= calls_seen
    assert {text.rpartition("<|")[2] for text in texts} == {"im_end|>", "endoftext|>"}
    ids = walk(grammars.compile(asked, [STOP]))
    assert ids[0] == tokenizer.token_to_id("<tool_call>")
    once = structural({**calls, "stop_after_first": True})
    assert all(
        tokenizer.decode(walk(grammars.compile(once, []), seed), skip_special_tokens=False).count("<tool_call>") == 1
        for seed in range(10)
    )


@pytest.mark.parametrize(
    "family",
    [
        "hermes",
        "llama3_json",
        "mistral",
        "deepseek",
        "harmony",
        "cohere",
        "tool_calls",
        "functionary",
        "xlam",
        "internlm",
    ],
)
def test_a_familys_parser_reads_the_calls_that_its_form_allows(
    grammars: TokenGrammars, tokenizer: Tokenizer, family: str
) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 22]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    names = ("view", "say-it.2")
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in names]
    parser, seen = BUILT_IN[family].make(tools), set()
    for single in (True, False):
        asked = structural(forced_calls(parser, tools, single=single))
        for seed in range(12):
            text = tokenizer.decode(walk(grammars.compile(asked, []), seed, 1500)[:-1], skip_special_tokens=False)
            turn = parser.parse(text)
            assert (turn.content, turn.error) == ("", None), text
            assert len(turn.calls) == 1 or (turn.calls and not single)
            assert all(call.arguments in ({"n": 1}, {"n": 22}) for call in turn.calls)
            seen |= {call.name for call in turn.calls}
    assert seen == set(names)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "exactly one of"),
        ({"json": {}, "regex": "a"}, "exactly one of"),
        ({"json": {"type": "strin"}}, "Invalid type: strin"),
        ({"json": "{"}, "not valid JSON"),
        ({"json": [1]}, "must be an object"),
        ({"json": {"$ref": "#/nowhere"}}, "nowhere"),
        ({"json": {"type": "string", "format": "colour"}}, "Unknown format"),
        ({"regex": "("}, "unclosed group"),
        ({"grammar": "start: nothing"}, "nothing"),
        ({"grammar": "root ::= ("}, "cannot be applied|structured_outputs"),
        ({"choice": ["x" * 300_000]}, "greatest length"),
        (structural({"type": "json_schema", "style": "glm_xml", "json_schema": {}}), "no 'glm_xml'"),
        (structural({"type": "any_text"}), "no 'any_text'"),
        ({"structural_tag": "7"}, "no 'None'"),
    ],
)
def test_a_form_that_cannot_be_applied_is_refused_with_the_reason(
    grammars: TokenGrammars, asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadRequest, match=words):
        grammars.compile(asked, [])


def nested(form: Any, inner: Any, levels: int) -> Any:
    for _ in range(levels):
        inner = form(inner)
    return inner


def wrapped(one: Any) -> Any:
    return {"type": "or", "elements": [one]}


def chained(number: int) -> Any:
    return {"anyOf": [{"$ref": f"#/$defs/d{number + 1}"}] * 8}


TEXT = {"type": "const_string", "value": "a"}
WIDE = {f"k{i}": {"type": "string", "pattern": f"^[a-z]{{1,{i % 50 + 1}}}$"} for i in range(1500)}
PRODUCT = [{"anyOf": [{"properties": {f"a{i}_{j}": {}}} for j in range(8)]} for i in range(6)]
HOSTILE: dict[str, dict[str, Any]] = {
    "repeats": {"regex": "((((a{1,500}){1,500}){1,500}){1,500}){1,500}"},
    "backtracks": {"regex": "(x+x+)+y|(.*a){300}"},
    "counts": {"regex": "(a?){500}a{500}"},
    "wide": {"json": {"properties": WIDE}},
    "product": {"json": {"allOf": PRODUCT}},
    "itself": {"json": {"$ref": "#"}},
    "grammar": {"grammar": 'start: start start | "a" start | "a"?'},
    "tree": {"json": {"$defs": {f"d{i}": chained(i) for i in range(30)} | {"d30": {}}, "$ref": "#/$defs/d0"}},
    "deep": {"json": nested(lambda one: {"properties": {"a": one}, "required": ["a"]}, {"type": "null"}, 190)},
    "deep tag": structural(nested(wrapped, TEXT, 95)),
    "deeper tag": structural(nested(wrapped, TEXT, 300)),
    "deep text": {"grammar": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000},
    "deep pattern": {"regex": "(" * 2000 + "a" + ")" * 2000},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_form_costs_little(grammars: TokenGrammars, name: str) -> None:
    """In processor time, so that other processes do not count: the slowest takes 0.3 s."""
    began = time.process_time()
    with contextlib.suppress(BadRequest):
        walk(grammars.compile(HOSTILE[name], []), most=50)
    assert time.process_time() - began < 5


def test_a_tokenizer_without_bytes_is_refused() -> None:
    from tokenizers.models import WordPiece

    words = Tokenizer(WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    with pytest.raises(BadRequest, match="with this tokenizer"):
        TokenGrammars(words, 2, [0]).compile({"regex": "a"}, [])
