"""Grammars that limit which tokens may be sampled next. The library llguidance computes the masks.

The library bounds the time of each step and the memory of each grammar by itself (LIMITS), and it releases Python's
lock while it computes. A grammar beyond a limit fails, and its request ends with an error.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json
from tokenizers import Tokenizer

from rollyard.core.errors import BadRequest

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_GRAMMAR = 1 << 18
"""Greatest length of a grammar in characters."""
WHITESPACE = {"x-guidance": {"whitespace_pattern": r"[ \n\t]{0,16}"}}
"""White space between the parts of JSON. A small model would otherwise fill its answer with it."""
LIMITS = {"max_lexer_states": 20_000, "step_lexer_fuel": 200_000, "step_max_items": 50_000, "verbose_errors": False}
"""Limits of a grammar. The fuel of a step lasts about 15 ms."""


class TokenGrammar:
    """The state of one generation in its grammar."""

    def __init__(self, matcher: LLMatcher, stop_ids: Collection[int], vocab_size: int) -> None:
        """`stop_ids`: tokens that end the generation where the grammar may end."""
        self._matcher = matcher
        self._stop_ids = [id for id in stop_ids if 0 <= id < vocab_size]
        self._vocab_size = vocab_size
        self.error = ""
        """Reason why the grammar cannot go on; empty if it can."""

    def allowed(self) -> NDArray[np.bool_]:
        """Return for each token [vocab] whether it may come next. If the grammar fails, `error` is set."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[: self._vocab_size].astype(np.bool_)
        if self._matcher.is_accepting():
            allowed[self._stop_ids] = True
        if self._matcher.is_error() or not allowed.any():
            why = _first_line(self._matcher.get_error()) or "no token of the vocabulary continues it"
            self.error = f"the grammar of `structured_outputs` cannot be followed: {why}"
        return allowed

    def accept(self, token: int) -> None:
        """Go on after a token that `allowed` allows. A token that ends the generation needs no call."""
        self._matcher.consume_token(token)


class TokenGrammars:
    """Compiles the grammars for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = list(eos_ids)
        self._vocabulary: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._special: dict[str, int] = {}

    def compile(self, asked: Mapping[str, Any], stop_ids: Collection[int]) -> TokenGrammar:
        """Compile vLLM's parameter `structured_outputs`. The call blocks. Raises BadRequest."""
        from llguidance import LLMatcher, LLParserLimits

        vocabulary = self._loaded()
        text = self._grammar(asked)
        if len(text) > MAX_GRAMMAR:
            raise BadRequest(f"`structured_outputs` has {len(text)} characters; the greatest length is {MAX_GRAMMAR}")
        matcher = LLMatcher(vocabulary, text, log_level=0, limits=LLParserLimits(**LIMITS))
        if matcher.is_error():
            raise BadRequest(f"`structured_outputs` cannot be applied: {_first_line(matcher.get_error())}")
        return TokenGrammar(matcher, stop_ids, self._vocab_size)

    def _loaded(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        with self._lock:
            if self._vocabulary is None:
                try:
                    made = LLTokenizer(self._tokenizer.to_str(), self._vocab_size, self._eos_ids or None)
                except ValueError as error:
                    raise BadRequest(
                        f"`structured_outputs` cannot be applied with this tokenizer: {_first_line(str(error))}"
                    ) from None
                added = self._tokenizer.get_added_tokens_decoder()
                self._special = {token.content: id for id, token in added.items() if made.is_special_token(id)}
                self._vocabulary = made
            return self._vocabulary

    def _grammar(self, asked: Mapping[str, Any]) -> str:
        from llguidance import LLMatcher, grammar_from

        match {name: value for name, value in asked.items() if value not in (None, False)}:
            case {"json": str(text), **rest} if not rest:
                return f"start: {_json(_parsed(text, 'json'))}"
            case {"json": schema, **rest} if not rest:
                return f"start: {_json(schema)}"
            case {"json_object": True, **rest} if not rest:
                return f"start: {_json({'type': 'object'})}"
            case {"regex": str(pattern), **rest} if not rest:
                return str(LLMatcher.grammar_from_regex(pattern))
            case {"choice": [_, *_] as choices, **rest} if not rest and all(isinstance(one, str) for one in choices):
                return f"start: {' | '.join(map(_quoted, choices))}"
            case {"grammar": str(text), **rest} if not rest:
                try:
                    return str(grammar_from("grammar", text[: MAX_GRAMMAR + 1]))
                except ValueError as error:
                    raise BadRequest(f"`structured_outputs.grammar`: {_first_line(str(error))}") from None
            case {"structural_tag": str(text), **rest} if not rest:
                tag = _parsed(text, "structural_tag")
                return f"start: {self._rule(tag.get('format') if isinstance(tag, dict) else None)}"
        raise BadRequest(
            "`structured_outputs` must have exactly one of json, json_object, regex, choice, grammar and structural_tag"
        )

    def _rule(self, form: Any) -> str:
        """Return the rule for a part of a structural tag."""
        from llguidance import regex_to_lark

        match form:
            case {"type": "const_string", "value": str(text)}:
                return self._literal(text)
            case {"type": "json_schema", "json_schema": schema} if form.get("style", "json") == "json":
                return _json(schema)
            case {"type": "regex", "pattern": str(pattern)}:
                return f"/{regex_to_lark(pattern)}/"
            case {"type": "sequence", "elements": [_, *_] as parts}:
                return f"({' '.join(map(self._rule, parts))})"
            case {"type": "or", "elements": [_, *_] as parts}:
                return f"({' | '.join(map(self._rule, parts))})"
            case {"type": "tag", "begin": str(begin), "content": content, "end": str(end)}:
                return f"({self._literal(begin)} {self._rule(content)} {self._literal(end)})"
            case {"type": "tags_with_separator", "tags": [_, *_] as tags, "separator": str(between)}:
                one = self._rule({"type": "or", "elements": tags})
                more = "" if form.get("stop_after_first") else f" ({self._literal(between)} {one})*"
                return f"({one}{more})" if form.get("at_least_one") else f"({one}{more})?"
        shown = form.get("style") or form.get("type") if isinstance(form, dict) else form
        raise BadRequest(f"`structured_outputs.structural_tag`: the embedded engine has no {str(shown)[:64]!r}")

    def _literal(self, text: str) -> str:
        """Return the rule for a text. Special tokens are never spelled with other tokens."""
        parts, start = [], 0
        while start < len(text):
            found = [(at, -len(mark), mark) for mark in self._special if (at := text.find(mark, start)) >= 0]
            at, _, mark = min(found, default=(len(text), 0, ""))
            parts += [_quoted(text[start:at])] if at > start else []
            parts += [f"<[{self._special[mark]}]>"] if mark else []
            start = at + len(mark)
        return " ".join(parts) or '""'


def _json(schema: Any) -> str:
    if schema is True or schema == {}:
        schema = {"type": ["object", "array", "string", "number", "boolean", "null"]}
    if not isinstance(schema, dict):
        raise BadRequest("a JSON schema must be an object")
    return f"%json {json.dumps({**schema, **WHITESPACE})}"


def _parsed(text: str, name: str) -> Any:
    try:
        return from_json(text)  # refuses deep nesting
    except ValueError as error:
        raise BadRequest(f"`structured_outputs.{name}` is not valid JSON: {error}") from None


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _first_line(text: str) -> str:
    return text.split("\n<state>")[0].replace("\n", " ").strip()[:300]
