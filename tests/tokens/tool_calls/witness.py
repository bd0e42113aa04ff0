"""Turns that other libraries' parsers read as witnesses beside ours, and the comparison with a table of differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.tokens.tool_calls.family_forms import FORMS, Call
from tests.tokens.tool_calls.spelled_values import NULLS, STOP, VALUES, calls, read

Reading = tuple[str, str | None, list[tuple[str, Any]]]
"""Content, thoughts, and calls as (name, arguments)."""
Table = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Form -> reason -> cases that a witness reads in another way."""
NOT_SETTLED = {"Step 3": "no template of the family shows how it writes white space and types", "Qwen3-Coder on one line": (
    "whether a line break at an end belongs to the value cannot be told; both parsers remove one")}  # fmt: skip
"""Forms that are not compared."""


def cases_of(form: str) -> dict[str, tuple[str, tuple[Call, ...]]]:
    """Return case -> (text, calls in it)."""
    family = FORMS[form]
    values = {**VALUES, **NULLS}
    del values["a text of 30 kB"]  # vLLM takes seconds for it
    found: dict[str, tuple[Call, ...]] = {name: (("get", value),) for name, value in values.items()}
    found["two calls"] = (("get", {"path": "a"}), STOP)
    for mark in family.markup:
        found[f"markup {mark}"] = (("get", {"text": f"a {mark} b", "path": "p"}),)
    cases = {name: (family.write(wanted), wanted) for name, wanted in found.items()}
    one: tuple[Call, ...] = (("get", {"path": "a"}),)
    return {**cases, "text before": (f"I look.\n{family.write(one)}", one)}


def turns_of(form: str) -> dict[str, str]:
    """Return case -> text, of turns with calls, with thoughts and with both."""
    family, turns = FORMS[form], {case: text for case, (text, _) in cases_of(form).items()}
    call = family.write([("get", {"path": "a"})])
    if family.text_after:
        turns["an answer after a call"] = f"{call}\nDone."
    if family.think is None:
        return turns
    opening, closing = family.think
    return turns | {
        "thoughts before an answer": f"{opening}\nI look.\n{closing}\nIt is 4.",
        "thoughts before a call": f"{opening}\nI look.\n{closing}\n{call}",
        "a call in thoughts": f"{opening}\nMaybe {call} or not.\n{closing}\nNo.",
        "a call in thoughts without an end": f"{opening}\nI look.\n{call}",
        "thoughts without an end": f"{opening}\nhalf",
    }


def differences(forms: Iterable[str], theirs: Callable[[str], Reading]) -> dict[str, set[str]]:
    """Return form -> cases that a witness reads in another way than ours. White space around contents is not compared."""
    found: dict[str, set[str]] = {}
    for form in forms:
        wanted = cases_of(form)
        for case, text in turns_of(form).items():
            ours = read(FORMS[form], text)
            assert case not in wanted or ours.calls == calls(*wanted[case][1])
            content, thoughts, made = theirs(text)
            given = [(call.name, call.arguments) for call in ours.calls]
            if (content.strip(), (thoughts or "").strip(), made) != (ours.content, ours.thoughts or "", given):
                found.setdefault(form, set()).add(case)
    return found


def calling(form: str, *without: str) -> tuple[str, ...]:
    """Return the cases of a form that have calls."""
    return tuple(case for case, text in turns_of(form).items() if case not in without and read(FORMS[form], text).calls)


def listed(table: Table) -> dict[str, set[str]]:
    """Return form -> cases in a table of differences."""
    return {form: {case for cases in reasons.values() for case in cases} for form, reasons in table.items()}
