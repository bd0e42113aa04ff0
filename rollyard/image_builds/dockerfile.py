"""A Dockerfile as stages of instructions. Pure: nothing is looked up, and variables stay as they are written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollyard.core.errors import ImageBuildFailed
from rollyard.kinds.schema.validation import did_you_mean

PASSED_OVER = {
    "EXPOSE": "a sandbox has no ports that others reach",
    "VOLUME": "the files of a sandbox last as long as the sandbox",
    "HEALTHCHECK": "nobody checks a sandbox's health",
    "STOPSIGNAL": "a sandbox is ended at once",
    "ONBUILD": "it is meant for builds from this image",
    "MAINTAINER": "it is obsolete",
}
"""Instructions without effect, and why."""
KEYWORDS = (
    "FROM", "RUN", "COPY", "ADD", "ENV", "ARG", "WORKDIR", "SHELL", "USER", "LABEL", "ENTRYPOINT", "CMD", *PASSED_OVER
)  # fmt: skip
_FLAGS = {
    "FROM": ("platform",),
    "RUN": ("mount", "network", "security"),
    "COPY": ("from", "chown", "chmod", "link"),
    "ADD": ("chown", "chmod", "link"),
}
_WITH_LISTS = ("RUN", "COPY", "ADD", "SHELL", "ENTRYPOINT", "CMD")
"""Instructions that may be written as a JSON list."""
_DIRECTIVE = re.compile(r"#\s*([A-Za-z]+)\s*=\s*(\S+)\s*")
_FLAG = re.compile(r"--([a-z]+)(?:=(\S*))?(?:\s+|$)")
_HEREDOC = re.compile(r"(?<!\S)\d*<<(-?)(['\"]?)([A-Za-z_][A-Za-z0-9_.]*)\2(?=[\s;|&)<>]|$)")


@dataclass(frozen=True)
class Heredoc:
    """Lines that follow an instruction, up to a line with `name` alone."""

    name: str
    text: str
    literal: bool
    """True: the name was quoted, so variables in the text stay as they are."""


@dataclass(frozen=True)
class Instruction:
    line: int
    """Number of its first line, from 1."""
    keyword: str
    text: str
    """All after the keyword and its flags, in one line."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """`mount` may be given several times: its values stand with a space between them."""
    listed: tuple[str, ...] | None = None
    """The words, if they are written as a JSON list."""
    heredocs: tuple[Heredoc, ...] = ()

    @property
    def shown(self) -> str:
        """The instruction in a line of at most 100 characters, for people."""
        flags = "".join(f" --{name}={value}" for name, values in self.flags.items() for value in values.split(" "))
        line = re.sub(r"\s+", " ", f"{self.keyword}{flags} {self.text}").strip()
        return line if len(line) <= 100 else f"{line[:99]}…"


@dataclass(frozen=True)
class BuildStage:
    """One FROM and what follows it."""

    number: int
    name: str | None
    base: str
    """The image, or the name of an earlier stage, or scratch."""
    line: int
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class Dockerfile:
    name: str
    """Name of the file, for errors."""
    arguments: tuple[Instruction, ...]
    """The ARGs before the first FROM."""
    stages: tuple[BuildStage, ...]
    escape: str = "\\"

    def at(self, line: int, why: str) -> ImageBuildFailed:
        """Return the error of a line."""
        return ImageBuildFailed(f"{self.name}:{line}: {why}")


def parse(text: str, name: str = "Dockerfile") -> Dockerfile:
    """Raises ImageBuildFailed, which names the line and what one can write there."""
    escape, instructions = _Lines(text, name).instructions()
    empty = Dockerfile(name, (), (), escape)
    arguments: list[Instruction] = []
    stages: list[tuple[Instruction, list[Instruction]]] = []
    for one in instructions:
        if one.keyword == "FROM":
            stages.append((one, []))
        elif stages:
            stages[-1][1].append(one)
        elif one.keyword == "ARG":
            arguments.append(one)
        else:
            raise empty.at(one.line, f"{one.keyword} stands before the first FROM: begin with FROM IMAGE")
    if not stages:
        raise empty.at(1, "it has no FROM: begin with FROM IMAGE, such as FROM debian:12")
    made = tuple(_stage(empty, number, one, body) for number, (one, body) in enumerate(stages))
    return Dockerfile(name, tuple(arguments), made, escape)


def _stage(file: Dockerfile, number: int, start: Instruction, body: Sequence[Instruction]) -> BuildStage:
    words = start.text.split()
    if len(words) == 3 and words[1].lower() == "as":
        return BuildStage(number, words[2].lower(), words[0], start.line, tuple(body))
    if len(words) != 1:
        raise file.at(start.line, "write FROM IMAGE or FROM IMAGE AS NAME")
    return BuildStage(number, None, words[0], start.line, tuple(body))


class _Lines:
    """Reads instructions from lines."""

    def __init__(self, text: str, name: str) -> None:
        self._lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
        self._at = 0
        self._file = Dockerfile(name, (), ())
        self._escape = self._directives()

    def instructions(self) -> tuple[str, list[Instruction]]:
        found = []
        while (one := self._next()) is not None:
            found.append(one)
        return self._escape, found

    def _directives(self) -> str:
        """Return the escape character. `# syntax` has no effect."""
        for line in self._lines:
            directive = _DIRECTIVE.fullmatch(line.strip())
            if directive is None:
                break
            if directive[1].lower() == "escape" and directive[2] in ("\\", "`"):
                return directive[2]
        return "\\"

    def _next(self) -> Instruction | None:
        while self._at < len(self._lines) and _is_comment(self._lines[self._at]):
            self._at += 1
        if self._at == len(self._lines):
            return None
        line = self._at + 1
        parts: list[str] = []
        while self._at < len(self._lines):
            part = self._lines[self._at]
            self._at += 1
            if parts and _is_comment(part):
                continue
            if not part.rstrip().endswith(self._escape):
                parts.append(part)
                break
            parts.append(part.rstrip()[:-1])
        return self._instruction(line, "".join(parts).strip())

    def _instruction(self, line: int, text: str) -> Instruction:
        word, _, rest = text.partition(" ") if " " in text.split("\t")[0] else text.partition("\t")
        keyword, rest = word.upper(), rest.strip()
        if keyword not in KEYWORDS:
            raise self._file.at(
                line,
                f"there is no instruction {word[:40]!r}: write {', '.join(KEYWORDS[:-1])}{did_you_mean(keyword, KEYWORDS)}",
            )
        flags: dict[str, str] = {}
        while keyword in _FLAGS and (flag := _FLAG.match(rest)):
            if flag[1] not in _FLAGS[keyword]:
                raise self._file.at(line, f"{keyword} has no flag --{flag[1]} here: {_flags_of(keyword)}")
            value = flag[2] if flag[2] is not None else "true"
            flags[flag[1]] = f"{flags[flag[1]]} {value}" if flag[1] == "mount" and "mount" in flags else value
            rest = rest[flag.end() :]
        if not rest:
            raise self._file.at(line, f"{keyword} says nothing more: {_EXAMPLES.get(keyword, 'write its arguments')}")
        listed = _json_list(rest) if keyword in _WITH_LISTS else None
        heredocs = self._heredocs(line, rest) if keyword in ("RUN", "COPY", "ADD") and listed is None else ()
        return Instruction(line, keyword, rest, flags, listed, heredocs)

    def _heredocs(self, line: int, text: str) -> tuple[Heredoc, ...]:
        found = []
        for dash, quote, name in _HEREDOC.findall(text):
            lines = []
            while True:
                if self._at == len(self._lines):
                    raise self._file.at(line, f"no line {name} ends the text after <<{name}: add one")
                one = self._lines[self._at]
                one = one.lstrip("\t") if dash else one
                self._at += 1
                if one == name:
                    break
                lines.append(f"{one}\n")
            found.append(Heredoc(name, "".join(lines), bool(quote)))
        return tuple(found)


_EXAMPLES = {
    "FROM": "write FROM IMAGE",
    "RUN": "write a command",
    "COPY": "write COPY FILE… PLACE",
    "ADD": "write ADD FILE… PLACE",
    "ENV": "write ENV NAME=VALUE",
    "ARG": "write ARG NAME or ARG NAME=DEFAULT",
    "WORKDIR": "write a path",
}


def _flags_of(keyword: str) -> str:
    return "write " + ", ".join(f"--{flag}" for flag in _FLAGS[keyword]) + ", or none"


def _is_comment(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _json_list(text: str) -> tuple[str, ...] | None:
    if not text.startswith("["):
        return None
    try:
        words = json.loads(text)
    except ValueError:
        return None
    return tuple(words) if isinstance(words, list) and all(isinstance(word, str) for word in words) else None
