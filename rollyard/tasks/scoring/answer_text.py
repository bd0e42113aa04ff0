"""Rewrites an answer so that symbols with several spellings have one, and layout is gone. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_DEPTH = 30

_SAME = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "π": r"\pi ", "∞": r"\infty ", "≈": r"\approx ", "≤": r"\le ",
    "≥": r"\ge ", "°": r"^\circ", "∪": r"\cup ", "∈": r"\in ", "±": r"\pm ", "ℝ": r"\mathbb{R}",
    "√": r"\sqrt", "∛": r"\sqrt[3]", "∅": r"\emptyset ", "⟨": "(", "⟩": ")", "{:}": ":", "÷": "/", "θ": r"\theta ",
    "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp|sqrt"
_REALS = r"(-\\infty,\\infty)"
_REWRITTEN: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r"^\s*\*\*(.*)\*\*\s*$", r"\1"),
    (r"\*\*", "^"),
    (r"(?<!\\)\$", ""),
    (r"(?<=\d)\\,(?=\d{3}(?!\d))", "{,}"),
    (r"(?<!\\)\\[()\[\]!]|\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\.?|\\(?:displaystyle|limits)(?![a-zA-Z])", ""),
    (r"\\[dtc]frac(?![a-z])", r"\\frac"),
    (r"\\(?:mathrm|mathbf|mathit|text|textbf|textit|textrm|mbox|operatorname|rm)\{\s*([ie])\s*\}", r" \1"),
    (r"\\(?:mathrm|mathbf|mathit|textbf|textit|textrm|mbox|operatorname|rm)\{", r"\\text{"),
    (r"\\text\{((?:[^{}\d]|\{[^{}\d]*\})*+(?:\d|\{[^{}]*\d[^{}]*\})(?:[^{}]|\{[^{}]*\})*+)\}", r" \1"),
    (r"^\s*\\f?box(?:ed)?\{(.*)\}\s*$", r"\1"),
    (r"^\s*(?:\\text\{)?\s*(?i:(?:the )?(?:correct |final )?answer(?: is)?):?\s*\}?(?=.*[^\s.])", ""),
    (r"\\[lr]brace(?![a-z])", lambda found: r"\{" if found[0] == r"\lbrace" else r"\}"),
    (r"\\langle(?![a-z])", "("),
    (r"\\rangle(?![a-z])", ")"),
    (r"\\(?:leq|leqslant)(?![a-z])", r"\\le "),
    (r"\\(?:geq|geqslant)(?![a-z])", r"\\ge "),
    (r"\\(?:simeq|approx)(?![a-z])", "="),
    (r"\\in(?![a-zA-Z])\s*", r"\\in "),
    (r"(?<!\\)\\[;:, ]|~|\\q?quad(?![a-z])|\s", " "),
    (r"\^(?:\\circ|\{\\circ\})(?:\s*(?:[CF](?![a-z])|\\text\{\s*[CF]\s*\}))?|\\degree|\\text\{\s*degrees?\s*\}", ""),
    (r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda found: f"^{{{found[0].translate(_SUPERSCRIPTS)}}}"),
    (rf"(?<![\\a-zA-Z])({_FUNCTIONS})(?=\s*[({{\\\d|]|\s+[a-z](?![a-z]))", r"\\\1"),
    (r"(?<![\\a-zA-Z])pi(?=\s*[-+*/^(){}\[\],=\d\\]|\s+[a-zA-Z](?![a-z])|\s*$)", r"\\pi "),
    (r"\{([^{}]*)\\over(?![a-z])([^{}]*)\}", r"\\frac{\1}{\2}"),
    (r"\{(\d+)\}/\{(\d+)\}", r"\1/\2"),
    (r"\\log_(?:e|\{e\})", r"\\ln"),
    (r"\\sqrt\s*(\[\d+\])?\s*([\da-z])", r"\\sqrt\1{\2}"),
    (r"\\frac\s*(\\[a-z]+|\w)\s*(\\[a-z]+|\w)", r"\\frac{\1}{\2}"),
    (r"(?:\\text\{)\s*,?\s*(?:and|or)\s*\}|\s(?:and|or)\s", ","),
    (r"(?<=[\dA-F])_\{(\d+)\}$", r"_\1"),
    (r"(?<=\d)\s*(?:percent|\\text\{\s*percent\s*\})$", r"\\%"),
    (r"(?i)(?:\\text\{)?(?:the set of )?all real(?: number)?s\}?", _REALS),
    (r"\\(?:mathbb\s*\{?R\}?|R(?![a-zA-Z]))(?!\s*[\^_+-])", _REALS),
    (r"(?i)^\s*(?:\\text\{)?\s*no (?:real )?solutions?\.?\s*\}?\s*$|\\varnothing(?![a-z])|\\\{\s*\\\}", r"\\emptyset"),
]  # fmt: skip


def normalized(text: str) -> str:
    """Remove layout and degree signs. Write symbols with several spellings in one spelling."""
    for old, new in _SAME.items():
        text = text.replace(old, new)
    for pattern, rewritten in _REWRITTEN:
        text = re.sub(pattern, rewritten, text)
    text = _argument_in_braces(text, re.compile(r"\\sqrt(?:\[\d+\])?\s*(?=\()"), "{%s}")
    text = _argument_in_braces(text, re.compile(r"\\exp\s*(?=\()"), "e^{%s}")
    text = re.sub(r"\\exp\s*(?=\{)", "e^", text).strip().removesuffix(".").strip()
    if "," not in text:
        text = text.replace(";", ",")
    return re.sub(r" +", " ", r"\cup".join(map(_usual_brackets, text.split(r"\cup"))))


def _argument_in_braces(text: str, command: re.Pattern[str], form: str) -> str:
    """Write `\\sqrt(x)` as `\\sqrt{x}`. `form`: what replaces the command and its argument, for `\\exp`."""
    parts, end = [], 0
    for found in command.finditer(text):
        if found.start() < end or (close := _closing(text, found.end())) is None:
            continue
        keep = found[0].strip() if form.startswith("{") else ""
        parts += [text[end : found.start()], keep, form % text[found.end() + 1 : close]]
        end = close + 1
    return "".join([*parts, text[end:]])


def _closing(text: str, start: int) -> int | None:
    """Return the index of the bracket that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0:
            return i
    return None


def _usual_brackets(text: str) -> str:
    """Write an interval such as `]0, 1[` as `(0, 1)`."""
    found = re.fullmatch(r"(\s*)([\[\]])([^\[\],]*,[^\[\],]*)([\[\]])(\s*)", text)
    if found is None or (found[2], found[4]) == ("[", "]"):
        return text
    return f"{found[1]}{'(' if found[2] == ']' else '['}{found[3]}{')' if found[4] == '[' else ']'}{found[5]}"


def balanced(text: str, brackets: str = "{}") -> bool:
    """Return whether every bracket is closed and the nesting is shallow enough to parse.

    The two brackets of a pair may differ, as in the interval [1, 2).
    """
    depth = 0
    for sign in text:
        depth += (sign in brackets[::2]) - (sign in brackets[1::2])
        if not 0 <= depth <= MAX_DEPTH:
            return False
    return depth == 0


def split_at(text: str, at: str) -> list[str]:
    """Split at the separators that are outside all brackets."""
    parts, depth, begin, i = [], 0, 0, 0
    while i < len(text):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0 and text.startswith(at, i):
            parts.append(text[begin:i])
            begin = i = i + len(at)
        else:
            i += 1
    return [*parts, text[begin:]]


def is_bracketed(text: str) -> bool:
    """Return whether the text begins with a bracket that closes only at the end of the text."""
    if len(text) < 2 or text[0] not in "([{" or text[-1] not in ")]}":
        return False
    return _closing(text, 0) == len(text) - 1


def without_spaces(text: str) -> str:
    """Remove spaces, except spaces between digits: 1 5/2 is not 15/2."""
    return re.sub(r"(?<!\d) | (?!\d)", "", text)


def bare_text(text: str) -> str:
    """Return the text without the command `\\text`."""
    return re.sub(r"\\text\{([^{}]*)\}", r"\1", text).strip()


def choices(text: str, last: str = "J") -> frozenset[str]:
    """Return the letters from A to `last` that a normalized text chooses, as `B`, `(B) 12`, `B. 12`, `Option B`, or `B, D` and
    `BD`; empty if it is not a choice."""
    bare, letter = bare_text(text), f"[A-{last}]"
    if (
        re.fullmatch(rf"\(?{letter}\)?(?:\s*,?\s*\(?{letter}\)?)+", bare)
        and sorted(found := re.findall(letter, bare)) == found
    ):
        return frozenset(found)
    one = re.fullmatch(
        r"(?i:(?:the )?(?:correct )?(?:option|choice)(?: is)?:?\s*)?"
        rf"(?:\(\s*({letter})\s*\)|({letter})(?:[).:]|(?=\s*$)))(?P<content>(?:\s.*)?)",
        bare,
    )
    if one is None or re.search(rf"(?:^\s*|[,&/(]\s*)\(?{letter}(?:[).:,]|\s*$)", one["content"]):
        return frozenset()
    return frozenset(one[1] or one[2])
