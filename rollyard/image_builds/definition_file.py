"""An Apptainer definition file (`.def`) as the stages of a build. Pure.

The rules are those of Apptainer 1.4: https://apptainer.org/docs/user/main/definition_files.html. The instructions have the
names of sections, such as %post, where they differ from those of a Dockerfile.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rollyard.image_builds.dockerfile import BuildStage, Dockerfile, Instruction

SUFFIX = ".def"
NO_EFFECT = {
    "%runscript": "sandboxes start no program of the image",
    "%startscript": "sandboxes start no program of the image",
    "%help": "nobody asks a sandbox for it",
}
"""Sections without effect, and why."""
_UNSUPPORTED = {
    "%pre": "it would run on this machine, outside of the image: move its commands to %post",
    "%setup": "it would run on this machine, outside of the image: name its files in %files, and move its commands to %post",
}
_OTHER_SECTIONS = ("%arguments", "%files", "%post", "%environment", "%labels", "%test")
_BOOTSTRAPS = ("docker", "localimage", "oci-archive", "docker-archive", "oci", "scratch")
_FETCH = "fetch the image with `apptainer pull IMAGE.sif …`, and write Bootstrap: localimage and From: IMAGE.sif"
_OTHER_BOOTSTRAPS = {
    "library": _FETCH,
    "shub": _FETCH,
    "oras": _FETCH,
    "docker-daemon": "write the image into a file with `docker save`, and write Bootstrap: docker-archive and From: FILE.tar",
    "debootstrap": "make a folder with `mmdebstrap SUITE FOLDER`, and write Bootstrap: localimage and From: FOLDER",
}
_HEADERS = ("from", "stage", "registry", "namespace", "includecmd")
_STAGE_START = re.compile(r"bootstrap\s*:", re.IGNORECASE)
_ARGUMENT = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_WORD = re.compile(r'"([^"]*)"|\'([^\']*)\'|(\S+)')
_KEPT_TEXT = re.compile(r"[\\$\"'`]")


def is_definition(name: str) -> bool:
    """Tell whether a file with this name is read as a definition file."""
    return name.endswith(SUFFIX)


@dataclass
class _Section:
    line: int
    """Number of the line with its name, from 1."""
    name: str
    """As it is compared: %post."""
    words: str
    """Text after the name."""
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(f"{one}\n" for one in self.lines)

    def numbered(self) -> Iterator[tuple[int, str]]:
        """Yield the lines that are neither empty nor comments."""
        for number, one in enumerate(self.lines, self.line + 1):
            if one.strip() and not one.strip().startswith("#"):
                yield number, one.strip()


@dataclass
class _Stage:
    line: int
    header: list[tuple[int, str]] = field(default_factory=list)
    sections: list[_Section] = field(default_factory=list)


def parse_definition(text: str, name: str, arguments: Mapping[str, str]) -> Dockerfile:
    """Return the stages. `arguments`: values for {{ NAME }}. Raises ImageBuildFailed, which names the line and what one can
    write there."""
    file = Dockerfile(name, (), ())
    stages: list[BuildStage] = []
    used: dict[str, int] = {}
    for number, stage in enumerate(_split(file, text)):
        stages.append(_StageReader(file, stage, arguments, used, stages).stage(number))
    if not stages:
        raise file.at(1, "it has no Bootstrap: begin with Bootstrap: docker, and From: IMAGE in the next line")
    declared = tuple(Instruction(line, "ARG", argument) for argument, line in used.items())
    return Dockerfile(name, declared, tuple(stages))


def _split(file: Dockerfile, text: str) -> list[_Stage]:
    stages: list[_Stage] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        word = line.split(maxsplit=1)[0] if line.strip() else ""
        if _STAGE_START.match(line):
            stages.append(_Stage(number, [(number, line)]))
        elif not stages:
            if word and not word.startswith("#"):
                raise file.at(number, f"{word} stands before the first Bootstrap: begin with Bootstrap: docker")
        elif word.startswith("%"):
            stages[-1].sections.append(_Section(number, word.lower(), line.strip()[len(word) :].strip()))
        elif stages[-1].sections:
            stages[-1].sections[-1].lines.append(line)
        else:
            stages[-1].header.append((number, line))
    return stages


class _StageReader:
    """Reads one stage."""

    def __init__(
        self,
        file: Dockerfile,
        stage: _Stage,
        arguments: Mapping[str, str],
        used: dict[str, int],
        earlier: Sequence[BuildStage],
    ) -> None:
        """`used`: gets each argument that the stage names, with its line."""
        self._file = file
        self._stage = stage
        self._used = used
        self._earlier = [one.name for one in earlier if one.name is not None]
        self._arguments = {**self._defaults(), **arguments}

    def stage(self, number: int) -> BuildStage:
        header = self._header()
        made: list[Instruction] = []
        for section in self._stage.sections:
            if section.name in _UNSUPPORTED:
                raise self._file.at(section.line, f"{section.name} is not supported: {_UNSUPPORTED[section.name]}")
            if section.name not in (*_OTHER_SECTIONS, *NO_EFFECT):
                names = ", ".join((*_OTHER_SECTIONS, *NO_EFFECT))
                raise self._file.at(section.line, f"there is no section {section.name[:40]} here: write {names}")
        for section in self._sections("%files"):
            made += self._files(section)
        made += self._post()
        made += [self._label(number, line) for one in self._sections("%labels") for number, line in one.numbered()]
        made += self._joined("%environment", always=any("_ENVIRONMENT" in one.text for one in made))
        made += [Instruction(one.line, one.name, "") for one in self._stage.sections if one.name in NO_EFFECT]
        made += self._joined("%test")
        name = header.get("stage")
        return BuildStage(number, name.lower() if name else None, self._base(header), self._stage.line, tuple(made))

    def _sections(self, name: str) -> list[_Section]:
        return [one for one in self._stage.sections if one.name == name]

    # arguments

    def _defaults(self) -> dict[str, str]:
        found = {}
        for section in self._sections("%arguments"):
            for number, line in section.numbered():
                name, equals, value = line.partition("=")
                if not equals or not name.strip():
                    raise self._file.at(number, f"{line[:40]!r} is not NAME=DEFAULT")
                found[name.strip()] = value.strip()
                self._used.setdefault(name.strip(), number)
        return found

    def _filled(self, line: int, text: str) -> str:
        """Return the text with the values of its {{ NAME }}. `line`: number of its first line."""

        def value(found: re.Match[str]) -> str:
            at = line + text.count("\n", 0, found.start())
            if found[1] not in self._arguments:
                raise self._file.at(
                    at, f"{found[0]} has no value: add --build-arg {found[1]}=VALUE, or a default to %arguments"
                )
            self._used.setdefault(found[1], at)
            return self._arguments[found[1]]

        return _ARGUMENT.sub(value, text)

    # the header

    def _header(self) -> dict[str, str]:
        header: dict[str, str] = {}
        for number, line in self._stage.header:
            words = self._filled(number, line.partition("#")[0]).strip()
            key, colon, value = words.partition(":")
            if not words:
                continue
            if not colon:
                raise self._file.at(number, f"{words[:40]!r} is not KEY: VALUE; sections begin with %, such as %post")
            key = key.strip().lower()
            if key == "fingerprints":
                raise self._file.at(
                    number, "signatures are not verified here: verify with `apptainer verify`, and leave this line out"
                )
            if key not in ("bootstrap", *_HEADERS) and header.get("bootstrap") in _BOOTSTRAPS:
                raise self._file.at(
                    number, f"the header has no {key}: write Bootstrap, From, Stage, Registry or Namespace"
                )
            header[key] = value.strip()
        return header

    def _base(self, header: Mapping[str, str]) -> str:
        """Return the image as FROM would name it."""
        bootstrap, image, line = header["bootstrap"].lower(), header.get("from", ""), self._stage.line
        if bootstrap not in _BOOTSTRAPS:
            other = _OTHER_BOOTSTRAPS.get(bootstrap, "begin with an image of a registry (Bootstrap: docker)")
            names = ", ".join(_BOOTSTRAPS)
            raise self._file.at(line, f"Bootstrap: {bootstrap} is not supported (but {names} are): {other}")
        if bootstrap == "scratch":
            return "scratch"
        if not image:
            raise self._file.at(line, f"Bootstrap: {bootstrap} needs an image: write From: IMAGE below it")
        if bootstrap == "docker":
            places = [header.get(key, "").strip("/") for key in ("registry", "namespace")]
            return "docker://" + "/".join([*(one for one in places if one), image.removeprefix("//")])
        if bootstrap == "localimage":
            return image if image.startswith(("/", "./", "../")) else f"./{image}"
        return f"{bootstrap}:{image}"

    # sections

    def _files(self, section: _Section) -> Iterator[Instruction]:
        flags = {}
        if section.words and not section.words.startswith("#"):
            keyword, _, stage = section.words.partition(" ")
            if keyword != "from" or not stage.strip():
                raise self._file.at(section.line, "write %files, or %files from STAGE")
            if stage.strip().lower() not in self._earlier:
                names = (
                    f"the earlier stages are {', '.join(self._earlier)}"
                    if self._earlier
                    else "name one with Stage: NAME"
                )
                raise self._file.at(section.line, f"there is no stage {stage.strip()!r} before this one: {names}")
            flags["from"] = stage.strip()
        for number, line in section.numbered():
            words = [one or two or three for one, two, three in _WORD.findall(self._filled(number, line))]
            source, place = words[0], words[1] if len(words) > 1 else words[0]
            listed = tuple(_KEPT_TEXT.sub(r"\\\g<0>", one) for one in (source, f"/{place.lstrip('/')}"))
            yield Instruction(number, "%files", f"{source} {place}", flags, listed)

    def _post(self) -> Iterator[Instruction]:
        """Yield the script of %post. `listed` has its shell."""
        sections = self._sections("%post")
        if text := "".join(self._filled(one.line + 1, one.text) for one in sections):
            words = next((one.words for one in sections if one.words), "")
            shell = words.partition("#")[0].split()
            if shell == ["-c"] or (shell[:1] != ["-c"] and not all(one.startswith("-") for one in shell)):
                raise self._file.at(
                    sections[0].line, f"%post {words[:40]} is not supported: write %post, or %post -c SHELL"
                )
            yield Instruction(sections[0].line, "%post", text, listed=tuple(shell))

    def _joined(self, name: str, always: bool = False) -> Iterator[Instruction]:
        sections = self._sections(name)
        text = "".join(self._filled(one.line + 1, one.text) for one in sections)
        if text.strip() or always:
            yield Instruction(sections[0].line if sections else self._stage.line, name, text, listed=())

    def _label(self, line: int, text: str) -> Instruction:
        name, _, value = self._filled(line, text).partition(" ")
        return Instruction(line, "LABEL", f"{shlex.quote(name)}={shlex.quote(value.strip())}")


def shell_of(one: Instruction, script: str) -> list[str]:
    """Return the command of a script: Apptainer's `/bin/sh -ex`, which starts another shell for `-c SHELL`."""
    words = list(one.listed or ())
    words = ["-c", f"{' '.join(words[1:])} {script}"] if words[:1] == ["-c"] else [*words, script]
    if "_ENVIRONMENT" in one.text:
        return ["/bin/sh", "-ec", 'mkdir -p /.singularity.d/env; exec "$@"', "sh", "/bin/sh", "-ex", *words]
    return ["/bin/sh", "-ex", *words]
