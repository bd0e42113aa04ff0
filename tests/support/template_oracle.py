"""A chat template's own renderings of conversations with fields, by transformers alone, and how a model would speak under it.

Nothing of Rollyard is used here but the schemas of two tools, so that the renderings and turns are a witness.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from copy import deepcopy
from datetime import datetime
from functools import cached_property
from typing import Any
from unittest import mock

from rollyard.tokens.tool_proof import TOOLS
from tests.support.small_tokenizers import trained

Message = dict[str, Any]

THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking", "thoughts")
THINK_CLOSES = {
    "<think>": "\n</think>\n\n",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "<|channel>thought": "\n<channel|>",
}
THINK_OPEN = re.compile("|".join(map(re.escape, THINK_CLOSES)))
THINK_CLOSE = re.compile("|".join(re.escape(close.strip()) for close in THINK_CLOSES.values()))
THINK_CLOSED = re.compile(rf"(?:{THINK_CLOSE.pattern})\s*$")
TAG_END = re.compile(r"[>\]]")
OUTPUTS_END = "<｜tool▁outputs▁end｜>"
MOST_AHEAD = 60
"""Most characters of a generation prompt that the rendering of an answer may lack, such as `<think></think>`."""
SPECIAL = re.compile(
    r"<\|[^|<>\s'\"{}]{1,40}\|>|<\|[a-z_]{1,20}>|<[a-z_]{1,20}\|>|<｜[^｜<>\s]{1,40}｜>|\[/?[A-Z][A-Z_]{2,}\]|</?s>"
    r"|<(?:start|end)_of_turn>|<(?:start|end)_of_[a-z_]+>|<extra_id_\d+>|</?think>|</?tool_call>|<(?:bos|eos|sop)>|\[gMASK\]"
    r"|<end_of_utterance>|</?(?:assistant|user|system|tool|sep)>|<seed:[a-z_]+>|</seed:[a-z_]+>|\[e~\[|\]~b\]|\]~!b\[|\[\|[a-z]{1,20}\|\]"
)
"""Texts that are one token of the models' own tokenizers."""
STRONG_END = re.compile(r"end_of_(?:turn|msg|text|sentence|utterance)|im_end|eo[st]|<\|end\|>", re.IGNORECASE)
CALL_STOPS = ["<|calls|>", "<|tool_response>"]
"""Tokens that end a turn with calls where another one ends an answer."""
HARMONY_STOPS = ["<|return|>", "<|call|>"]
FAILURES = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)


class Refused(Exception):
    """The template refuses the conversation, or fails at it."""


class Noon(datetime):
    """A fixed time, so that a template that writes the time always gives the same text."""

    @classmethod
    def now(cls, tz: Any = None) -> Noon:
        return cls(2026, 1, 1, 12, tzinfo=tz)


class Oracle:
    """One template with a tokenizer of the usual shape that has the template's special tokens."""

    def __init__(self, source: str) -> None:
        self.source = source
        special = [*dict.fromkeys([*SPECIAL.findall(source), "<s>", "</s>"])]
        self.tokenizer = _tokenizer(source, special, "</s>")
        self.parts: set[str] = set()
        self.text_arguments = False
        self._probe_contents()
        self.text_arguments = self._wants_text_arguments()
        special = self._all_special(special)
        self.stops = self._stops(special)
        self.tokenizer.eos_token = self.stops[0]
        self.stop_ids: list[int] = self.tokenizer.convert_tokens_to_ids(self.stops)

    def render(self, messages: Sequence[Message], tools: Sequence[Any] = (), *, prompt: bool = True) -> str:
        """Raises Refused."""
        from jinja2 import TemplateError

        shown = [self._shaped(message) for message in messages]
        try:
            with mock.patch("transformers.utils.chat_template_utils.datetime", Noon):
                text: str = self.tokenizer.apply_chat_template(
                    shown, tools=list(tools) or None, add_generation_prompt=prompt, tokenize=False
                )
        except (TemplateError, *FAILURES, RecursionError) as error:
            raise Refused(f"{type(error).__name__}: {error}") from None
        return text

    def shows(self, word: str, messages: Sequence[Message], tools: Sequence[Any] = (), *, prompt: bool = False) -> bool:
        try:
            return word in self.render(messages, tools, prompt=prompt)
        except Refused:
            return False

    @cached_property
    def shows_tools(self) -> bool:
        return self.shows("find_train", [{"role": "user", "content": "Hello."}], TOOLS)

    @cached_property
    def shows_calls(self) -> bool:
        return self.shows("Quito", [*self._asked, self.said("", [call("get_weather", "Quito")])], TOOLS)

    @cached_property
    def parallel(self) -> bool:
        calls = [call("get_weather", "Quito"), call("find_train", "Lima")]
        return self.shows("Lima", [*self._asked, self.said("", calls)], TOOLS) and self.shows_calls

    @cached_property
    def takes_system(self) -> bool:
        return self.shows("Be brief", [{"role": "system", "content": "Be brief."}, *self._asked])

    @cached_property
    def thought_field(self) -> str | None:
        """Field whose text the template shows as the thoughts of the newest turn."""
        for field in THOUGHT_FIELDS:
            for calls in ([], [call("get_weather", "Quito")]):
                message = {**self.said("Yes.", calls), field: "hmm-hmm"}
                if self.shows("hmm-hmm", [*self._asked, message], TOOLS if calls else ()):
                    return field
        return None

    def said(self, content: str, calls: Sequence[Message] = (), thoughts: str = "") -> Message:
        message: Message = {"role": "assistant", "content": content}
        if thoughts and self.thought_field:
            message[self.thought_field] = thoughts
        if calls:
            message["tool_calls"] = deepcopy(list(calls))
        return message

    def with_text_thoughts(self, answer: Message, text: str) -> Message:
        """Return the message with the thoughts of the turn's text as a part of its content, if the template knows no field
        for them."""
        if self.thought_field or "</think>" not in text:
            return answer
        thoughts, close, rest = text.partition("</think>")
        return {**answer, "content": thoughts + close + rest[: len(rest) - len(rest.lstrip())] + answer["content"]}

    def spoken(self, messages: Sequence[Message], answer: Message, tools: Sequence[Any], thoughts: str = "") -> str:
        """Return the text that a model samples after the prompt, in the template's own spelling, without the token that
        ends the turn. Raises Refused."""
        prompt, whole = self.render(messages, tools), self.render([*messages, answer], tools, prompt=False)
        start = next(
            (i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), min(len(prompt), len(whole))
        )
        tag = max(prompt.rfind(mark, 0, start) for mark in "<[")
        if start < len(prompt) and tag >= 0 and not TAG_END.search(prompt, tag, start):
            start = tag  # both go on with a tag of the same beginning
        if start < len(prompt.rstrip()) - MOST_AHEAD or start < prompt.rfind(str(messages[-1]["content"])):
            raise Refused("its rendering of an answer does not begin as the prompt ends")
        ahead, text = prompt[start:], whole[start:]
        closes = [m.group() for m in THINK_CLOSE.finditer(ahead)]
        said = min((text.find(stop) for stop in self.stops if stop in text), default=len(text))
        if closes and closes[-1] in text[:said]:  # behind the turn it belongs to a prompt that is written in any case
            text = text.partition(closes[-1])[2].removeprefix(ahead.rpartition(closes[-1])[2])
        elif not closes and (opened := THINK_OPEN.search(ahead)):  # the template's history has no thoughts
            close = THINK_CLOSES[opened.group()]
            text = text.lstrip()
            text = f"{thoughts}{'' if text.startswith(close.strip()) else close}{text}"
        elif (
            not ahead
            and thoughts
            and thoughts not in text
            and "<think>" in self.source
            and not THINK_CLOSED.search(prompt)
        ):
            text = f"<think>\n{thoughts}\n</think>\n\n{text.lstrip()}"
        elif messages[-1]["role"] == "tool":  # some templates write what follows results only when the answer is there
            if text.lstrip().startswith(OUTPUTS_END):
                text = text.lstrip().removeprefix(OUTPUTS_END)
            late = text.find(self._header) if self._header and not prompt.endswith(self._header) else -1
            text = text[late + len(self._header) :] if 0 <= late < MOST_AHEAD else text
        ends = [text.rfind(stop) for stop in self.stops]
        text = text[: max(ends)] if max(ends) >= 0 else text + self._before_stop
        while stop := next((stop for stop in self.stops if text.rstrip().endswith(stop)), None):  # written twice
            text = text.rstrip().removesuffix(stop)
        return text

    @cached_property
    def _before_stop(self) -> str:
        """White space that the template writes between an answer and the token that ends the turn."""
        try:
            shown = self.render([*self._asked, self.said("zemi"), {"role": "user", "content": "quvo"}], prompt=False)
        except Refused:
            return ""
        after = shown[shown.rfind("zemi") + len("zemi") :]
        space = after[: min((after.find(stop) for stop in self.stops if stop in after), default=0)]
        return "" if space.strip() else space

    @cached_property
    def _header(self) -> str:
        """Text with which a generation prompt begins an answer."""
        try:
            return self.render(self._asked).removeprefix(self.render(self._asked, prompt=False))
        except Refused:
            return ""

    @property
    def _asked(self) -> list[Message]:
        return [{"role": "user", "content": "What now?"}]

    def stop_of(self, messages: Sequence[Message], answer: Message, tools: Sequence[Any]) -> str:
        """Return the token that a model ends this turn with."""
        whole = self.render([*messages, answer], tools, prompt=False)
        return max(self.stops, key=whole.rfind)

    def _shaped(self, message: Message) -> Message:
        made = deepcopy(message)
        if message["role"] in self.parts:
            made["content"] = [{"type": "text", "text": message["content"]}]
        for one in made.get("tool_calls") or []:
            if self.text_arguments:
                one["function"]["arguments"] = json.dumps(one["function"]["arguments"], ensure_ascii=False)
        return made

    def _probe_contents(self) -> None:
        before: dict[str, list[Message]] = {"assistant": self._asked, "tool": [*self._asked]}
        for role in ("user", "assistant", "system", "tool"):
            messages = [*before.get(role, []), {"role": role, "content": "quvo"}]
            if role == "tool":
                answer = {"role": "assistant", "content": "", "tool_calls": [call("get_weather", "Quito")]}
                messages = [*self._asked, answer, {**messages[-1], "name": "get_weather", "tool_call_id": "000000000"}]
            if role == "system":
                messages.append(self._asked[0])
            if self.shows("quvo", messages, TOOLS if role == "tool" else ()):
                continue
            self.parts.add(role)
            shown = self.shows("quvo", messages, TOOLS if role == "tool" else ())
            if not shown or self.shows("'quvo'", messages, TOOLS if role == "tool" else ()):
                self.parts.discard(role)

    def _all_special(self, special: list[str]) -> list[str]:
        """Return also the special tokens that the template puts together from pieces."""
        try:
            shown = self.render([*self._asked, self.said("", [call("get_weather", "Quito")])], TOOLS)
        except Refused:
            return special
        more = [token for token in dict.fromkeys(SPECIAL.findall(shown)) if token not in special]
        self.tokenizer.add_special_tokens({"additional_special_tokens": [*special, *more]})
        return [*special, *more]

    def _wants_text_arguments(self) -> bool:
        """Whether the template prints arguments as they are, so that they must be JSON already, or refuses objects."""
        messages = [*self._asked, {"role": "assistant", "content": "", "tool_calls": [call("get_weather", "Quito")]}]
        try:
            shown, without = (self.render(these, TOOLS, prompt=False) for these in (messages, self._asked))
        except Refused:
            return True
        return shown.count("'place'") > without.count("'place'")

    def _stops(self, special: list[str]) -> list[str]:
        """Return the tokens that end a turn: whatever the template writes behind an answer and behind calls."""
        if "<|channel|>" in self.source and "<|call|>" in self.source:
            return HARMONY_STOPS
        calls = self.said("", [call("get_weather", "Quito")])
        result = {"role": "tool", "name": "get_weather", "tool_call_id": "000000000", "content": "quvo"}
        found: list[str] = []
        for messages, tools, last in (
            ([*self._asked, self.said("zemi"), {"role": "user", "content": "quvo"}], (), "zemi"),
            ([*self._asked, calls, result], TOOLS, "Quito"),
        ):
            try:
                shown = self.render(messages, tools, prompt=False)
            except Refused:
                continue
            between = shown[shown.rfind(last) + len(last) :].partition("quvo")[0]
            ends = [m.group() for m in SPECIAL.finditer(between) if m.group() in special]
            if last == "Quito":
                found += [end for end in ends if end in ("<|observation|>", "<|eom_id|>")][:1]
                continue
            header = _common_end(shown.partition("What now?")[0], between)
            own = len(SPECIAL.findall(between.removesuffix(header)))
            strong = [end for end in ends if STRONG_END.search(end)]
            found += strong[-1:] or ends[max(0, own - 1) :][:1]
        found += [stop for stop in CALL_STOPS if stop in self.source]
        return [*dict.fromkeys(found)] or ["</s>"]


def _common_end(one: str, other: str) -> str:
    size = 0
    while size < min(len(one), len(other)) and one[-1 - size] == other[-1 - size]:
        size += 1
    return one[len(one) - size :]


def call(name: str, place: str, number: int = 0, **more: Any) -> Message:
    """Return one call as a field. The id is nine digits, as Mistral's templates want it."""
    function = {"name": name, "arguments": {"place": place, **more}}
    return {"id": f"{number:09d}", "type": "function", "function": function}


def _tokenizer(source: str, special: list[str], eos: str) -> Any:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(trained("byte-level BPE")),
        bos_token="<s>", eos_token=eos, additional_special_tokens=special,
    )  # fmt: skip
    made.chat_template = source
    return made
