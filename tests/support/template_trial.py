"""Tries chat templates: compares every prompt with the template's rendering of the whole conversation.

    python tests/support/template_trial.py FILE.jinja ... [--tokenizer FOLDER] [--stop TEXT ...] [--seeds 20]

The tokenizer is the tiny policy's own unless a folder is named; `--stop` names the token that ends turns, `<|im_end|>`
by default. Prints one line for each file: the reason of a refusal, or the number of compared prompts and the causes of
new segments.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import mock

from rollyard.core.errors import TaskError, TemplateUnusable
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import Conversation

WORDS = [
    "yes", "No.", "It is 3.14. And so on.", "fox jumps", "Line one\nline two", "  ", "\n", "\n\n", " odd", "<b>&amp;</b>",
    '{"a": [1, "x"]}', "<tool_call>", "Straße", "漢字 🎉", "x = 1", "The quick brown fox jumps over the lazy dog, twice.",
]  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]
TURNS = 8
FAILURES = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
"""Errors of a template's own expressions, beside the template engine's."""


@dataclass
class Trial:
    """The result of one conversation, or of several."""

    prompts: int = 0
    breaks: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Noon(datetime):
    """A fixed time, so that a template that writes the time always gives the same text."""

    @classmethod
    def now(cls, tz: Any = None) -> Noon:
        return cls(2026, 1, 1, 12, tzinfo=tz)


class Whole:
    """The template's rendering of whole conversations, by transformers alone."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._parts: set[str] = set()
        for role in ("user", "assistant", "system", "tool"):  # a role's conversation begins with the roles before it
            if not self._shows(role):
                self._parts.add(role)
                if not self._shows(role):
                    self._parts.remove(role)

    def render(self, messages: Sequence[dict[str, Any]], *, prompt: bool = True) -> str:
        shown = [self._in_parts(m) if m["role"] in self._parts else m for m in messages]
        text: str = self._tokenizer.apply_chat_template(
            shown, tools=TOOLS, add_generation_prompt=prompt, tokenize=False
        )
        return text

    def takes(self, *roles: str) -> bool:
        from jinja2 import TemplateError

        try:
            self.render([{"role": role, "content": "qu"} for role in roles])
        except (TemplateError, *FAILURES):
            return False
        return True

    def _shows(self, role: str) -> bool:
        from jinja2 import TemplateError

        before = {"assistant": ["user"], "tool": ["user", "assistant"]}.get(role, [])
        after = ["user"] if role == "system" else []
        shown = []
        for word in ("quvo", "hupi"):
            messages = [{"role": r, "content": word if r == role else "-"} for r in [*before, role, *after]]
            try:
                shown.append(self.render(messages, prompt=False))
            except (TemplateError, *FAILURES):
                return False
        return shown[0] != shown[1]

    @staticmethod
    def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "content": [{"type": "text", "text": message["content"]}]}


def converse(template: ChatTemplate, tokenizer: Any, pick: random.Random) -> Trial:
    """Run one random conversation under a template. Turns are split into ids as no tokenizer would; some are noise."""
    trial, whole = Trial(), Whole(tokenizer)
    messages = [{"role": "user", "content": _text(pick)}]
    if whole.takes("system", "user"):
        messages.insert(0, {"role": "system", "content": _text(pick)})
    tools = whole.takes("user", "assistant", "tool")
    conversation = Conversation(template, messages, TOOLS)
    before: list[int] = []
    sampled: list[list[int]] = []
    for number in range(TURNS):
        prompt = conversation.prompt_ids()
        trial.prompts += 1
        said, meant = template.decode(prompt), whole.render(messages)
        if said != meant:  # space around thoughts and answers is spelling
            said, meant = ("".join(text.split()) for text in (said, meant))
        if template.exact and said != meant:
            trial.wrong.append(f"prompt {number} is {said!r}, the template says {meant!r}")
        opened = [broken for broken in conversation.breaks if broken.turn == number]
        if not opened and prompt[: len(before)] != before:
            trial.wrong.append(f"prompt {number} does not continue its segment")
        if any(not broken.why for broken in opened):
            trial.wrong.append(f"the segment of prompt {number} has no reason")
        ids = _turn(template, tokenizer, pick)
        sampled.append(ids)
        stopped = bool(ids) and ids[-1] in template.stop_ids
        text = conversation.add_sampled(ids, [-1.0] * len(ids), "v1", "stop" if stopped else "length")
        before = prompt + ids
        follow = [{"role": "user", "content": _text(pick)}]
        if tools and pick.random() < 0.5:
            follow = [{"role": "tool", "content": _text(pick)} for _ in range(pick.randint(1, 2))]
        conversation.add_messages(deepcopy(follow))
        messages += [{"role": "assistant", "content": text}, *follow]
    runs = [t for s in conversation.segments() for t, m in zip(s.token_ids, s.loss_mask, strict=True) if m]
    if runs != [token for ids in sampled for token in ids]:
        trial.wrong.append("the sampled ids are others")
    trial.breaks.update(broken.cause.value for broken in conversation.breaks)
    return trial


def tried(tokenizer: Any, stop_ids: Sequence[int], seeds: int, name: str = "") -> Trial:
    """Try several conversations under the tokenizer's template. Raises TemplateUnusable."""
    template, sum_ = ChatTemplate(tokenizer, stop_ids), Trial()
    for seed in range(seeds):
        with mock.patch("transformers.utils.chat_template_utils.datetime", Noon):
            one = converse(template, tokenizer, random.Random(f"{name}/{seed}"))
        sum_.prompts += one.prompts
        sum_.breaks += one.breaks
        sum_.wrong += one.wrong
    return sum_


def _text(pick: random.Random) -> str:
    return "".join(pick.choices(WORDS, k=pick.randint(1, 3)))


def _turn(template: ChatTemplate, tokenizer: Any, pick: random.Random) -> list[int]:
    kind = pick.random()
    if kind < 0.15:
        ids = [pick.randrange(len(tokenizer)) for _ in range(pick.randint(0, 10))]
    else:
        text = _text(pick)
        if kind < 0.5:
            text = (
                pick.choice(["<think>\n", "", "<think>"])
                + text
                + pick.choice(["\n</think>\n\n", "</think>"])
                + _text(pick)
            )
        ids = []
        while text:  # a split that no tokenizer gives
            size = pick.randint(1, 12)
            ids += template.encode_behind(template.stop_ids[0], text[:size])
            text = text[size:]
    return ids if pick.random() < 0.15 else [*ids, pick.choice(template.stop_ids)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument(
        "--tokenizer", type=Path, default=Path(__file__).parents[2] / "examples/tiny_policy/model", metavar="FOLDER"
    )
    parser.add_argument("--stop", nargs="+", default=["<|im_end|>"], metavar="TEXT")
    parser.add_argument("--seeds", type=int, default=20)
    chosen = parser.parse_args()
    from transformers import AutoTokenizer

    tokenizer, failed = AutoTokenizer.from_pretrained(chosen.tokenizer), False
    for file in chosen.files:
        tokenizer.chat_template = file.read_text()
        try:
            trial = tried(tokenizer, tokenizer.convert_tokens_to_ids(chosen.stop), chosen.seeds, file.name)
        except (TaskError, TemplateUnusable) as error:
            print(f"{file.name}: refused: {error}")
            continue
        failed |= bool(trial.wrong)
        told = "; ".join(trial.wrong[:3]) or ", ".join(f"{n} {c}" for c, n in trial.breaks.items()) or "no new segment"
        print(f"{file.name}: {'WRONG' if trial.wrong else 'exact'}: {trial.prompts} prompts; {told}")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
