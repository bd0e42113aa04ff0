"""A proof finds out at load whether a model's calls would be read, for templates and parsers of all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rollyard.core.errors import TaskError
from rollyard.tokens import tool_proof
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.tool_calls import ParsedTurn
from rollyard.tokens.tool_calls.hermes import Hermes
from rollyard.tokens.tool_proof import prove_tool_calls
from rollyard.wire.tool_proof import ToolProof
from tests.support.chat_templates import CHATML
from tests.support.small_tokenizers import fitted
from tests.support.template_families import FAMILIES, QWEN25, Family

CALL, RESULT = "call.function | tojson + '\\n</tool_call>'", "m.content + '\\n</tool_response>'"
STRANGE = QWEN25.replace("<tool_call>", "<act>").replace(CALL, "call.function | string + '</act>'")
"""Writes calls that no parser knows."""
FORGETFUL = QWEN25.replace(RESULT, f"(m.content if messages[loop.index0 - 1].role != 'tool' else '') + {RESULT[12:]}")
"""Writes the first result only."""
UNLISTED = QWEN25.replace("{%- if tools %}", "{%- if false %}")
"""Writes calls, but not the tools."""
assert len({QWEN25, STRANGE, FORGETFUL, UNLISTED}) == 4
CHATML_FAMILY = FAMILIES[0]


def template(source: str, family: Family = CHATML_FAMILY) -> ChatTemplate:
    tokenizer = fitted("byte-level BPE", family)
    tokenizer.chat_template = source
    return ChatTemplate(tokenizer, tokenizer.convert_tokens_to_ids(family.stops))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_calls_of_each_known_family_are_proven_to_be_read(family: Family) -> None:
    proof = prove_tool_calls(template(family.template, family))
    if "tool_calls" in family.template:
        assert (proof.status, proof.reason) == ("True", "ReadBack"), proof.message
    else:
        assert proof.reason == ("NoTools" if "tools %}" not in family.template else "CallsNotShown")


def test_calls_that_no_parser_reads_are_told_with_the_text_and_what_to_do() -> None:
    proof = prove_tool_calls(template(STRANGE))
    assert (proof.status, proof.reason, proof.refuses) == ("False", "NoParser", True)
    assert "no parser of this node reads its calls, such as" in proof.message
    assert "<act>" in proof.message
    assert proof.message.endswith("; name a parser in the pool's `spec.model.toolParser`, or use tasks without tools")


def test_a_template_without_tools_is_refuted_unless_a_parser_is_named() -> None:
    plain = template(CHATML)
    assert (prove_tool_calls(plain).status, prove_tool_calls(plain).reason) == ("False", "NoTools")
    named = prove_tool_calls(plain, "hermes")
    assert (named.status, named.reason, named.parser) == ("Unknown", "CallsNotShown", "hermes")


def test_a_template_that_shows_calls_and_not_tools_is_served() -> None:
    proof = prove_tool_calls(template(UNLISTED))
    assert (proof.status, proof.reason) == ("Unknown", "ToolsNotShown")
    assert "a task's prompt must describe them" in proof.message


def test_calls_at_which_a_template_fails_are_told_with_the_cause() -> None:
    """transformers refuses methods that change an object. The template of Kimi-K2-Thinking in llama.cpp has one."""
    unsafe = template(QWEN25.replace(CALL, f"([].append(call) or '') + {CALL}"))
    proof = prove_tool_calls(unsafe)
    assert (proof.status, proof.reason) == ("Unknown", "CallsNotShown")
    assert (
        "fails at calls, which stay text in its prompts (access to attribute 'append' of 'list' object" in proof.message
    )
    assert "write `x = x + [item]` for `x.append(item)`" in proof.message
    called = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    with pytest.raises(TaskError, match="fails at tool calls"):
        unsafe.render([{"role": "user", "content": "What now?"}, called], tool_proof.TOOLS, True)


def test_the_wrong_parser_is_refuted_and_a_missing_one_is_unknown() -> None:
    qwen = template(QWEN25)
    assert prove_tool_calls(qwen, "mistral").reason == "CallsUnreadable"
    missing = prove_tool_calls(qwen, "nowhere")
    assert (missing.status, missing.reason) == ("Unknown", "ParserMissing")
    assert "no tool-call parser 'nowhere'" in missing.message


class Careless:
    """Parser of a plug-in with a fault."""

    form, error_role = "", "tool"

    def __init__(self, tools: Sequence[dict[str, Any]]) -> None:
        pass

    def parse(self, text: str) -> ParsedTurn:
        raise ZeroDivisionError


class Picky(Careless):
    """Reads the template's spelling, and loses any other one without a word."""

    def parse(self, text: str) -> ParsedTurn:
        return Hermes().parse(text) if '": ' in text else ParsedTurn(text)


def proven(monkeypatch: pytest.MonkeyPatch, parser: Any, source: str = QWEN25) -> ToolProof:
    monkeypatch.setattr(tool_proof, "parser_for", lambda template, name, tools: parser(tools))
    return prove_tool_calls(template(source))


def test_a_parser_that_raises_is_served_because_the_model_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = proven(monkeypatch, Careless)
    assert (proof.status, proof.reason) == ("Unknown", "CallsRefused")


def test_a_plug_in_that_cannot_be_made_does_not_stop_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(tools: Any) -> Any:
        raise ZeroDivisionError

    proof = proven(monkeypatch, broken)
    assert (proof.status, proof.reason, proof.message) == (
        "Unknown",
        "ProofFailed",
        "the proof failed: ZeroDivisionError()",
    )


def test_a_parser_that_loses_another_spelling_of_the_model_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = proven(monkeypatch, Picky)
    assert (proof.status, proof.reason) == ("False", "CallsUnreadable")
    assert "with JSON without spaces, reads 0 of 1 calls" in proof.message


def test_results_that_a_template_forgets_are_refuted() -> None:
    proof = prove_tool_calls(template(FORGETFUL))
    assert (proof.status, proof.reason) == ("False", "ResultsNotShown")
    assert "shows 1 of 2 results of calls" in proof.message
