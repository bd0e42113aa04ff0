"""Reads which options an answer chooses: by letters, or by the text of an option. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rollyard.kinds.stem_task import LETTERS
from rollyard.tasks.scoring.answer_text import bare_text, choices, normalized

_OR = re.compile(r"(?<![a-zA-Z])or(?![a-zA-Z])|/")
_SMALL = re.compile(r"\(?[a-z]\)?\.?")
_REASONED = re.compile(r"\(?([A-Z])\)?[\s,;:.–—-]+(?:because|since|as|for|due)\b(?P<reason>.*)", re.DOTALL)
_PARTS = re.compile(r"(?<!\d)[/|,;&+]|[/|,;&+](?!\d)|(?<![a-zA-Z])(?:and|or)(?![a-zA-Z])")
_LABELLED = re.compile(r"(?i)(?:option |choice )?\(?([A-Z])\)?\s*[).:]?\s+(?P<text>\S.*)", re.DOTALL)


def chosen(answer: str, options: Sequence[str]) -> frozenset[str]:
    """Return the letters of the options that the answer chooses; empty if it chooses none, or says two things at once."""
    last = LETTERS[len(options) - 1]
    plain = normalized(answer)
    bare = bare_text(plain)
    if _SMALL.fullmatch(bare):
        bare = bare.upper()
    if re.fullmatch(rf"\(?[A-{last}]\)?(?:\s*,\s*\(?[A-{last}]\)?)+", bare):  # in any order
        return frozenset() if _OR.search(answer) else frozenset(re.findall("[A-Z]", bare))
    for text in (bare, re.sub(r"[\[\]{}*`]", "", bare).strip()):
        if letters := choices(text, last):
            return letters if _agrees(bare, letters, options) else frozenset()
    if (found := _REASONED.fullmatch(bare)) and found[1] <= last:
        other = re.search(rf"(?<![\w'])[A-{last}](?![\w'])", found["reason"])
        return frozenset() if other else frozenset(found[1])
    labelled = _LABELLED.fullmatch(bare)
    if labelled and (named := _by_text(labelled["text"].strip("()"), options)) == {labelled[1].upper()}:
        return named
    return _by_text(answer, options)


def _agrees(text: str, letters: frozenset[str], options: Sequence[str]) -> bool:
    """Return whether the text behind the letter is not that of another option, and names no other beside its own."""
    found = _LABELLED.fullmatch(text)
    if len(letters) > 1 or found is None or found[1].upper() not in letters:
        return True
    if named := _by_text(found["text"], options):
        return named == letters
    parts = [_by_text(part.strip(), options) for part in _PARTS.split(found["text"]) if part.strip()]
    return all(not part or part == letters for part in parts)


def _by_text(answer: str, options: Sequence[str]) -> frozenset[str]:
    """Return the letter of the one option with this text. Case and spelling count only where options differ in nothing else."""
    for spelled in (_as_it_is, _as_text, str.casefold, lambda text: _as_text(text).casefold()):
        wanted = spelled(answer)
        found = [letter for letter, option in zip(LETTERS, options, strict=False) if spelled(option) == wanted]
        if wanted and found:
            return frozenset(found) if len(found) == 1 else frozenset()
    return frozenset()


def _as_it_is(text: str) -> str:
    return " ".join(text.split()).removesuffix(".")


def _as_text(text: str) -> str:
    return re.sub(r"\\(?=[^a-zA-Z])|[\s{}$]", "", bare_text(normalized(text)))
