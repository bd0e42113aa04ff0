"""Holds conversations under real chat templates, and compares every prompt with the template's own rendering with fields.

    python -m tests.support.template_trials [PART OF A NAME ...] [--verbose]

Prints a table with a line for each template, then the failures. A failure is one of these:

- `prompt`: text outside sampled turns that is not the template's own
- `ids`: a sampled id that is another one in the segments
- `call`: a call, an argument or a thought that is read wrong, in the template's spelling or in another one of the model
- `lost`: calls that were spelled in the template's form, and of which neither call nor error came out
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from rollyard.core.errors import TaskError, TemplateUnusable
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import Conversation
from rollyard.tokens.tool_calls import ParsedTurn, parse_safely, parser_for
from rollyard.tokens.tool_calls.spellings import JSON_STYLES, in_json_style, other_spellings
from rollyard.tokens.tool_proof import prove_tool_calls
from tests.support.family_spellings import misread
from tests.support.template_corpus import RealTemplate, corpus, installed
from tests.support.template_oracle import TOOLS, Message, Noon, Oracle, Refused, call


@dataclass(frozen=True)
class Step:
    """One sampled turn of a script, and what follows it."""

    content: str = ""
    calls: tuple[Message, ...] = ()
    thoughts: str = ""
    results: tuple[str, ...] = ()
    user: str = "And then?"
    """The user's next message, if the turn has no calls."""


@dataclass(frozen=True)
class Script:
    name: str
    steps: tuple[Step, ...]
    system: str = "Be brief."
    question: str = "What now?"
    tools: bool = True


THOUGHTS_END = re.compile(r"</think>|<\|END_THINKING\|>|\[BEGIN FINAL RESPONSE\]")


def weather(place: str, **more: Any) -> tuple[Message, ...]:
    return (call("get_weather", place, 1, **more),)


def both(one: str, other: str) -> tuple[Message, ...]:
    return call("get_weather", one, 1, days=2), call("find_train", other, 2, exact=False)


def many(n: int) -> Step:
    """One of twenty turns: two of three with calls, some with thoughts."""
    if n % 3 == 0:
        return Step(f"Answer {n}.", user=f"Question {n}?")
    return Step("", weather(f"Place {n}"), "" if n % 4 else f"Thought {n}.", (f"Result {n}.",))


SPECIAL_TEXT = "</tool_call> <tool_call> <|im_end|> <|eot_id|> </s> [/TOOL_RESULTS] <|end|> <think> </think>"
SCRIPTS = [
    Script("one call", (Step("", weather("Quito"), results=("Sunny.",)), Step("It is sunny."), Step("Yes."))),
    Script("call with text", (Step("I look.", weather("Quito", days=3), results=("Rain.",)), Step("Rain."))),
    Script("parallel calls", (Step("", both("Quito", "Lima"), results=("Sunny.", "At nine.")), Step("Nine."), Step("Bye."))),
    Script(
        "thoughts",
        (
            Step("", weather("Quito"), "I must look.", ("Sunny.",)),
            Step("", weather("Lima"), "One more place.", ("Rain.",)),
            Step("Sun and rain.", thoughts="Now I know."),
            Step("You are welcome.", thoughts="They said thanks."),
        ),
    ),
    Script("thoughts without calls", (Step("Four.", thoughts="2 + 2"), Step("Six.", thoughts="3 + 3")), tools=False),
    Script(
        "thoughts, text and calls",
        (Step("I look.", both("Quito", "Lima"), "Hm.", ("A", "B")), Step("Done.", thoughts="So.")),
    ),
    Script("empty content", (Step("", weather("Quito"), results=("",)), Step("Nothing."), Step("", user="?"), Step("Sorry."))),
    Script(
        "tool errors",
        (
            Step("", weather("Nowhere"), results=('{"error": "no such place", "code": 404}',)),
            Step("", weather("Quito"), results=("Traceback (most recent call last):\n  File \"x\"\nKeyError: 'q'",)),
            Step("It fails."),
        ),
    ),
    Script(
        "unicode",
        (Step("Ich schaue … 漢字 🎉", weather("Zürich 🎉 \\ \"q\""), results=("Ελλάδα: 21 °C\n🚀",)), Step("Straße — fertig.")),
        system="Antworte kurz. 漢字",
        question="Wie ist das Wetter in Zürich? 🎉",
    ),
    Script("no system prompt", (Step("", weather("Quito"), results=("Sunny.",)), Step("Sunny.")), system=""),
    Script(
        "white space",
        (Step("  I look. \n", weather(" Quito\n two "), results=("\n\n  Sunny. \n",)), Step(" Sunny.\n\n", user="  So?\n")),
        system="  Be brief.\n\n",
        question="\n What now?  ",
    ),
    Script("special text in a result", (Step("", weather("Quito"), results=(SPECIAL_TEXT,)), Step("Odd."))),
    Script("special text in an argument", (Step("", weather("<b>&amp;</b> </x> [a] {b}"), results=("Fine.",)), Step("Odd."))),
    Script("many turns", tuple(map(many, range(1, 21)))),
    Script("no tools", (Step("Yes."), Step("No."), Step("Two\nlines.\n\nMore.")), tools=False),
    Script("no tools, no system prompt", (Step("Yes."), Step("No.")), system="", tools=False),
]  # fmt: skip

ADDED_ID = re.compile(r', "id": "\d{9}"')
"""Id that Apriel's templates write into the calls of earlier turns. No result names it; a turn stays as it was sampled."""
BEFORE_THINK = re.compile(r"\s+(?=<think>)")
RESPELLED = ("call with text", "parallel calls", "thoughts")
"""Scripts that are held once more for each other style of JSON."""
ENDED = ("one call", "no tools")
"""Scripts that are held once more for each other end of their turns."""
ENDS = ("cut off", "another stop token")

NO_HEADER = "its prompt after results does not begin the answer, so the answer's header is sampled"
KNOWN = {
    "llama/Bielik-11B-v3.0-Instruct": NO_HEADER,
    "vllm/tool_chat_template_gemma3_pythonic": "it escapes no quotes in calls, and writes no commas between arguments",
    "vllm/tool_chat_template_hermes": NO_HEADER,
    "vllm/tool_chat_template_hunyuan_a13b": NO_HEADER,
    "vllm/tool_chat_template_llama3.2_pythonic": "it writes texts in calls without quotes",
    "vllm/tool_chat_template_llama4_json": NO_HEADER,
    "vllm/tool_chat_template_llama4_pythonic": "it writes numbers in calls as texts",
    "vllm/tool_chat_template_toolace": "it writes texts in calls without quotes",
}
"""Template -> what does not hold under it."""


@dataclass
class Report:
    """The result of all scripts under one template."""

    name: str
    source: str
    tools: bool = False
    parser: str = ""
    thoughts: str = ""
    prompts: int = 0
    turns: int = 0
    calls: int = 0
    spellings: int = 0
    breaks: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, str] = field(default_factory=dict)
    """Script -> why the template cannot hold this conversation at all, by its own words."""
    note: str = ""
    """Error with which the template fails at calls."""
    proof: str = ""
    """Status and reason of the proof of tool calls, as the pool's condition shows them."""
    refused: str = ""
    """Why Rollyard refuses the template, or its tools."""
    failures: list[tuple[str, str, str]] = field(default_factory=list)
    """(kind, script, what is wrong)."""


def tried(real: RealTemplate) -> Report:
    """Hold all conversations under one template."""
    report = Report(real.name, real.source)
    with mock.patch("transformers.utils.chat_template_utils.datetime", Noon):
        oracle = Oracle(real.text)
        report.tools = oracle.shows_tools and oracle.shows_calls
        report.thoughts = oracle.thought_field or ("text" if "</think>" in real.text else "")
        try:
            template = ChatTemplate(oracle.tokenizer, oracle.stop_ids)
        except TemplateUnusable as error:
            report.refused = str(error)
            return report
        report.note = template.fields.no_calls and f"it fails at calls, which stay text: {template.fields.no_calls}"
        proof = prove_tool_calls(template)
        report.proof = f"{proof.status} {proof.reason}"
        parser = _parser(template, report) if report.tools else None
        if parser is not None and proof.refuses:  # such a pool refuses tasks with tools
            report.refused, parser = proof.message, None
        for script in SCRIPTS:
            if script.tools and (parser is None or not report.tools):
                continue
            if any(len(step.calls) > 1 for step in script.steps) and not oracle.parallel:
                report.skipped[script.name] = "the template shows one call a turn"
                continue
            _hold(script, oracle, template, parser, report)
            if script.name in RESPELLED:
                for style in JSON_STYLES:
                    _hold(script, oracle, template, parser, report, style)
            for end in ENDS if script.name in ENDED else ():
                _hold(script, oracle, template, parser, report, end=end)
        for spelling, kind, why in misread(oracle, template) if report.tools and parser is not None else ():
            report.spellings += 1
            if kind:
                report.failures.append((kind, spelling.name, why))
    return report


def _parser(template: ChatTemplate, report: Report) -> Any:
    try:
        parser = parser_for(template, None, TOOLS)
    except TaskError as error:
        report.refused = str(error)
        return None
    report.parser = type(parser).__name__
    return parser


def _hold(
    script: Script,
    oracle: Oracle,
    template: ChatTemplate,
    parser: Any,
    report: Report,
    style: str | None = None,
    end: str | None = None,
) -> None:
    """Hold one conversation. `style`: of the turns' JSON, if it is not the template's own. `end`: end of the turns, from ENDS,
    if they do not end with the template's token."""
    tools = TOOLS if script.tools else []
    messages: list[Message] = [{"role": "user", "content": script.question}]
    if script.system and oracle.takes_system:
        messages.insert(0, {"role": "system", "content": script.system})
    conversation = Conversation(template, messages, tools, parser=parser if script.tools else None)
    raw = list(messages)
    """The same messages, with thoughts in the contents if the template has no field for them."""
    spellings: list[tuple[str, str]] = []
    """(text of a turn as the template writes it, as it was sampled)."""
    sampled: list[list[int]] = []
    before: list[int] = []

    def fail(kind: str, why: str) -> None:
        report.failures.append((kind, ", ".join(filter(None, (script.name, style, end))), why))

    for number, step in enumerate(script.steps):
        answer = oracle.said(step.content, step.calls, step.thoughts)
        try:
            meant = oracle.render(messages, tools)
            text = oracle.spoken(messages, answer, tools, step.thoughts)
            if step.thoughts and step.thoughts not in text:  # the prompt says that this turn has no thoughts
                answer = oracle.said(step.content, step.calls)
                text = oracle.spoken(messages, answer, tools)
            if any(call["function"]["name"] not in text for call in step.calls):
                raise Refused("it writes no calls beside this text")
        except Refused as refused:
            report.skipped[script.name] = f"turn {number}: {refused}"
            break
        try:
            prompt = conversation.prompt_ids()
        except (TaskError, TemplateUnusable) as error:
            fail("prompt", f"turn {number}: refused: {error}")
            break
        report.prompts += 1
        said = template.decode(prompt)
        stripped = [{**m, "content": m["content"].strip()} if m["role"] == "assistant" else m for m in messages]
        forms = [meant, *(_rendered(oracle, form, tools) for form in (raw, stripped))]
        if "add_tool_id" in oracle.source:
            said, forms = ADDED_ID.sub("", said), [form and ADDED_ID.sub("", form) for form in forms]
        if (
            not oracle.thought_field
        ):  # the template's white space before an answer, and so before thoughts in the answer
            said, forms = BEFORE_THINK.sub("", said), [form and BEFORE_THINK.sub("", form) for form in forms]
        if said not in _allowed(forms, spellings):
            fail("prompt", f"turn {number}: {_difference(said, meant)}")
        if prompt[: len(before)] != before and not any(broken.turn == number for broken in conversation.breaks):
            fail("ids", f"prompt {number} does not continue its segment, and no break is counted")
        if style is not None:
            spellings.append((text, text := in_json_style(text, style)))
        elif step.content[:1].isspace():
            spellings.append((text, text))
        ids = template.encode_behind(template.stop_ids[0], text)
        stop = oracle.tokenizer.convert_tokens_to_ids(_stop(oracle, messages, answer, tools))
        ids += _end(template, stop, end)
        sampled.append(ids)
        turn_text = conversation.add_sampled(ids, [-1.0] * len(ids), "v1", "stop" if end != ENDS[0] else "length")
        opened = conversation.last.turn.opened
        report.turns += 1
        before = prompt + ids
        follow: list[Message] = [{"role": "user", "content": step.user}]
        if parser is not None and script.tools:
            parsed = conversation.last.parsed
            wrong = _misread(step, parsed, turn_text)
            report.calls += len(step.calls)
            if wrong:
                fail(
                    "lost" if len(parsed.calls) < len(step.calls) and parsed.error is None else "call",
                    f"turn {number}: {wrong} in {turn_text!r}",
                )
                break
            for name, spelling in other_spellings(turn_text) if step.calls and style is None and end is None else ():
                report.spellings += 1
                other = parse_safely(parser, spelling, opened)
                if wrong := _misread(step, other, spelling):
                    fail(
                        "lost" if len(other.calls) < len(step.calls) and other.error is None else "call",
                        f"{name}: {wrong} in {spelling!r}",
                    )
        if step.calls:
            conversation.add_results(list(step.results))
            given = conversation._messages[-len(step.calls) :]
            for made, its in zip(answer["tool_calls"], given, strict=True):
                assert isinstance(its, dict)
                made["id"] = its["tool_call_id"]
            follow = [
                {"role": "tool", "name": one["function"]["name"], "tool_call_id": one["id"], "content": result}
                for one, result in zip(answer["tool_calls"], step.results, strict=True)
            ]
        else:
            conversation.add_messages(follow)
        messages += [answer, *follow]
        raw += [oracle.with_text_thoughts(answer, text), *follow]
    runs = [t for s in conversation.segments() for t, m in zip(s.token_ids, s.loss_mask, strict=True) if m]
    if runs != [token for ids in sampled for token in ids]:
        fail("ids", "the sampled ids are others")
    report.breaks.update(broken.cause.value for broken in conversation.breaks)


def _end(template: ChatTemplate, stop: int, end: str | None) -> list[int]:
    """Return the ids that end a turn. `stop`: the template's own."""
    others = [other for other in template.stop_ids if other != stop]
    return {ENDS[0]: [], ENDS[1]: others[:1] or [stop]}.get(end or "", [stop])


def _allowed(meant: Sequence[str | None], spellings: Sequence[tuple[str, str]]) -> set[str]:
    """Return the template's renderings, also with the turns as they were sampled."""
    found = {text for text in meant if text is not None}
    for written, spoken in spellings:
        found |= {text.replace(written, spoken) for text in found}
        found |= {text.replace(written.strip(), spoken.strip()) for text in found}
        written, spoken = (THOUGHTS_END.split(turn)[-1].strip() for turn in (written, spoken))
        found |= {text.replace(written, spoken) for text in found if written}
        # without its thoughts, a turn is kept from its first character that is not white space
        found |= {spoken.join(re.split(r"[ \t]*" + re.escape(written), text)) for text in found if written}
    return found


def _rendered(oracle: Oracle, messages: Sequence[Message], tools: Sequence[Any]) -> str | None:
    try:
        return oracle.render(messages, tools)
    except Refused:
        return None


def _stop(oracle: Oracle, messages: Sequence[Message], answer: Message, tools: Sequence[Any]) -> str:
    try:
        return oracle.stop_of(messages, answer, tools)
    except Refused:
        return oracle.stops[0]


def _misread(step: Step, parsed: ParsedTurn, text: str) -> str:
    """Return what is wrong with a parsed turn; empty if nothing is. White space at the ends of values may differ."""
    if parsed.error is not None:
        return f"error {parsed.error!r}"
    if len(parsed.calls) != len(step.calls):
        return f"{len(parsed.calls)} calls of {len(step.calls)}"
    for one, meant in zip(parsed.calls, step.calls, strict=True):
        if one.name != meant["function"]["name"]:
            return f"the call of {one.name!r}"
        if _bare(one.arguments) != _bare(meant["function"]["arguments"]):
            return f"arguments {one.arguments!r}, meant {meant['function']['arguments']!r}"
    content = step.content.strip() if step.content.strip() in text else ""
    if parsed.content.strip() != content and content != (parsed.thoughts or "").strip():  # gpt-oss's analysis is both
        return f"content {parsed.content!r}, meant {content!r}"
    if step.thoughts and step.thoughts in text and (parsed.thoughts or "").strip() != step.thoughts:
        return f"thoughts {parsed.thoughts!r}, meant {step.thoughts!r}"
    return ""


def _bare(value: dict[str, Any]) -> dict[str, Any]:
    return {k: v.strip() if isinstance(v, str) else v for k, v in value.items()}


def _difference(said: str, meant: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(said, meant, strict=False)) if a != b), min(len(said), len(meant)))
    start = max(0, at - 30)
    return f"prompt …{said[start : at + 60]!r}, template …{meant[start : at + 60]!r}"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("names", nargs="*", help="parts of names of templates; default: all")
    arguments.add_argument("--verbose", action="store_true", help="every failure, not the first of its kind")
    arguments.add_argument(
        "--installed", action="store_true", help="only templates that are at hand without a download"
    )
    chosen = arguments.parse_args()
    found = [
        template
        for template in (installed() if chosen.installed else corpus())
        if not chosen.names or any(part in template.name for part in chosen.names)
    ]
    started, reports = time.monotonic(), [tried(template) for template in found]
    for report in reports:
        wrong = Counter(kind for kind, _, _ in report.failures)
        print(
            f"{report.name:48} tools={'yes' if report.tools else 'no':3} {report.parser or '-':12} {report.thoughts or '-':17} "
            f"{report.proof:22} {report.prompts:3} prompts {report.calls:3} calls {report.spellings:3} spellings "
            f"breaks={dict(report.breaks) or '-'} failures={dict(wrong) or '-'} {report.refused}"
        )
    print()
    for report in reports:
        shown: Counter[tuple[str, str]] = Counter()
        for kind, script, why in report.failures:
            shown[kind, script if chosen.verbose else ""] += 1
            if chosen.verbose or shown[kind, ""] == 1:
                print(f"{report.name}: {kind}: {script}: {why}"[: 10_000 if chosen.verbose else 420])
        if chosen.verbose:
            for script, why in report.skipped.items():
                print(f"{report.name}: skipped: {script}: {why}")
    total: Counter[str] = Counter()
    for report in reports:
        total.update(
            {"prompts": report.prompts, "turns": report.turns, "calls": report.calls, "spellings": report.spellings}
        )
        total.update(f"failures: {kind}" for kind, _, _ in report.failures)
        total["templates"] += 1
        total["templates with tools"] += report.tools
        total["templates refused, or whose tools are"] += bool(report.refused)
        total["templates with failures"] += bool(report.failures)
        for kind in {kind for kind, _, _ in report.failures}:
            total[f"templates with failures: {kind}"] += 1
    print(f"\n{time.monotonic() - started:.0f} s; " + "; ".join(f"{name}: {count}" for name, count in total.items()))
    return int(any(report.failures for report in reports))


if __name__ == "__main__":
    raise SystemExit(main())
