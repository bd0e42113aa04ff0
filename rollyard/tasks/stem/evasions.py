"""Open answers that no judge sees, because a judge may reward them without a right answer in them. Pure.

Some words alone, such as `Solution:` or `Let's solve this step by step`, get rewards from judges (arXiv 2507.08794). Others
speak to the judge, repeat the question, or name many answers.
"""

from __future__ import annotations

import re
import unicodedata


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", readable(text).casefold())


def readable(text: str) -> str:
    """Return the text in usual characters, without those that nobody sees."""
    plain = unicodedata.normalize("NFKC", text).replace("’", "'")
    return "".join(sign for sign in plain if unicodedata.category(sign) not in ("Cf", "Cc") or sign in "\n\t").strip()


_GENERIC = frozenset(
    words(
        """
        a about above again also alright am an and answer answers are as at be because been before begin below but by
        can careful carefully certainly clear clearly complete conclude conclusion consider correct correctly could
        detail detailed determine do done each easy explain explanation final finally find first follow following follows for
        from full get given go going good great happy have help here hence how i if in indeed into is it its itself just
        know last let lets like look main make many me more my need next now obtain obvious of ok okay on or our out
        overall perfect please problem procedure process proceed provide question reach really reason reasoning result
        results s see shall should show simple so solution solutions solve solved solving some start starting state step
        steps such summary sure take task thank thanks that the their then there therefore these they thing think
        thinking this those thought thoughts through thus to together try trying understand up us use used using very
        want was way we well were what when where which why will with work would write you your antwort lösung respuesta
        solución réponse soluzione risposta odpowiedź odpověď resposta ответ решение 解 解答 解説 答 答案 かいせつ
        """
    )
)
"""Words without content of their own."""
_JUDGE = r"(?:judge|grader|evaluator|examiner|reviewer|verifier)"
_RATE = r"(?:give|award|assign|grant|rate|mark|score|grade|accept|approve|judge|evaluate|treat|consider)"
_KEY = r"(?:reference|gold|ground[- ]truth|expected|official|model)"
_TO_THE_JUDGE = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        r"\b(?:ignore|disregard|forget|override|bypass)\b.{0,40}\b(?:instruction|prompt|rule|reference|rubric|above|previous)",
        rf"\b(?:dear|hello|hi|hey|attention|to) (?:the )?{_JUDGE}\b|\bas (?:the|a|an) (?:{_JUDGE}|ai|language model)\b",
        rf"\byou (?:are|must|should|will|have to|can|may)\b.{{0,50}}\b(?:{_JUDGE}|{_RATE}|respond|output|return|say)\b",
        rf"\b{_RATE}\b.{{0,30}}\b(?:full|maximum|top|perfect|correct|as (?:right|true)|(?:this|my) (?:answer|response)|me)\b",
        r"\b(?:this|my|the) (?:answer|response|solution|submission)\b.{0,40}\b(?:is|was|be|matches|equals|agrees)\b.{0,40}"
        r"\b(?:correct|right|true|perfect|reference|equivalent|identical|verified|accepted|approved)\b",
        rf"\b(?:the|your|its|a) {_KEY} (?:answer|solution)\b|\b(?:same|identical|equal|equivalent) (?:as|to) the {_KEY}\b",
        r"[\"'{]\s*(?:is_)?(?:correct|score|verdict|reward|grade|result)[\"']?\s*[:=]",
        r"\b(?:correct|verdict|score|grade|reward)\s*[:=]\s*(?:true|yes|correct|right|pass|1|10|100|full)\b",
        r"<\|?/?\s*(?:im_start|im_end|system|assistant|user|answer|end_of_turn|eot_id|start_header_id)\b|\[/?INST\]",
        r"^\s*(?:system|assistant|judge|grader|human|user)\s*:",
        r"\b(?:been|was) (?:verified|graded|judged|approved|checked)\b.{0,30}\b(?:correct|right|true|full)\b",
    )
)
_ALWAYS_TWO = re.compile(r"(?i)\b(?:more or less|(?:one|two|three|\d+) or more|whether or not|or so|or less|or not)\b")
_SEVERAL = re.compile(
    r"(?i)\beither\b.+\bor\b|\bor\b.+\bor\b|\band/or\b|\bone of (?:these|the following)\b"
    r"|\b(?:any|all) of (?:the )?(?:above|these)\b"
    r"|\b(?:could|might|may) (?:also )?be\b.+\bor\b|\b(?:possibly|perhaps|maybe)\b.+\b(?:or|possibly|perhaps|maybe)\b"
    r"|\bif not\b.+\bthen\b",
    re.DOTALL,
)
_ALTERNATIVE = re.compile(r"(?i)[^\s(,]\s+or\s+\S")
SHORT_WORDS = 12
"""An answer with at most so many words commits to nothing if it has an `or`. In a longer one, `or` may join anything."""
MANY_ITEMS, ITEM_WORDS = 4, 4
"""A list of so many items of so few words each is a guess of many answers, if the reference is no such list."""


def evasion(question: str, reference: str, answer: str) -> str | None:
    """Say why the answer cannot be right, whatever a judge says; None if a judge should compare it."""
    said, wanted, asked = (words(text) for text in (answer, reference, question))
    if not said:
        return "the answer has no word and no number"
    if _GENERIC.issuperset(said) and not _GENERIC.issuperset(wanted):
        return "the answer has no content of its own"
    spelled = readable(answer)
    if any(pattern.search(spelled) and not pattern.search(readable(reference)) for pattern in _TO_THE_JUDGE):
        return "the answer speaks to its judge or of its own correctness"
    if _repeats(said, asked) and not _repeats(wanted, asked):
        return "the answer repeats the question"
    if _several(spelled, len(said)) and not _several(readable(reference), len(wanted)):
        return "the answer names several answers"
    items, others = _items(spelled), _items(readable(reference))
    if len(items) >= MANY_ITEMS and len(items) > 2 * len(others) and len(said) <= ITEM_WORDS * len(items):
        return f"the answer is a list of {len(items)} answers"
    return None


def _repeats(said: list[str], asked: list[str]) -> bool:
    text, question = " ".join(said), " ".join(asked)
    if len(asked) >= 4 and question in text and _GENERIC.issuperset(text.replace(question, " ").split()):
        return True
    own = {word.removesuffix("s") for word in said if word not in _GENERIC}
    return len(own) >= 4 and own <= {word.removesuffix("s") for word in asked} and len(said) >= 0.6 * len(asked)


def _several(text: str, count: int) -> bool:
    plain = _ALWAYS_TWO.sub(" ", text)
    return bool(_SEVERAL.search(plain)) or (count <= SHORT_WORDS and bool(_ALTERNATIVE.search(plain)))


def _items(text: str) -> list[str]:
    return [item for item in re.split(r"[,;\n|/]|\band\b", text) if re.search(r"\w", item)]
