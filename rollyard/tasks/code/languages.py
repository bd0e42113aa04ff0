"""Languages by name: how a solution is compiled and run. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rollyard.kinds.code_task import ProgramFields

BUILD = "/workspace/.build"
"""Folder for what compilers write. Confined programs read it."""
Words = Sequence[str]


@dataclass(frozen=True)
class Commands:
    """How one source becomes a running program."""

    run: Words
    compile: Words | None = None
    """None: the source is run as it is."""
    environment: Mapping[str, str] = field(default_factory=dict)


def _native(*compiler: str, after: Words = ()) -> Callable[[str, str, int | None], Commands]:
    def commands(source: str, build: str, memory: int | None) -> Commands:
        return Commands([f"{build}/program"], [*compiler, "-o", f"{build}/program", source, *after])

    return commands


def _go(source: str, build: str, memory: int | None) -> Commands:
    own = {"GOCACHE": f"{build}/cache", "GOPATH": f"{build}/path", "GO111MODULE": "off", "CGO_ENABLED": "0"}
    return Commands([f"{build}/program"], ["go", "build", "-o", f"{build}/program", source], own)


def _java(source: str, build: str, memory: int | None) -> Commands:
    """The main class has the name of the file. The virtual machine reserves little more than its heap, because the address
    space of a process is limited too."""
    heap = [f"-Xmx{memory >> 20}m"] if memory is not None else []
    spaces = ["-XX:CompressedClassSpaceSize=64m", "-XX:ReservedCodeCacheSize=64m"]
    run = ["java", *heap, "-Xss64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", *spaces]
    small = ["-J-Xmx256m", "-J-XX:+UseSerialGC", *(f"-J{space}" for space in spaces)]
    name = posixpath.basename(source).removesuffix(".java")
    return Commands([*run, "-cp", build, name], ["javac", *small, "-encoding", "UTF-8", "-d", build, source])


_LANGUAGES: dict[str, Callable[[str, str, int | None], Commands]] = {
    "python": lambda source, build, memory: Commands(["python3", source]),
    "javascript": lambda source, build, memory: Commands(["node", source]),
    "c": _native("gcc", "-O2", "-std=gnu11", "-xc", after=["-xnone", "-lm"]),
    "cpp": _native("g++", "-O2", "-std=gnu++17", "-xc++"),
    "rust": _native("rustc", "-O", "--edition=2021"),
    "go": _go,
    "java": _java,
}


def commands_of(program: ProgramFields, source: str, build: str = BUILD, memory: int | None = None) -> Commands:
    """Return the commands of a program whose source is the file `source`. `memory`: the program's limit in bytes."""
    named = _LANGUAGES[program.language](source, build, memory) if program.language is not None else Commands(())
    return Commands(
        named.run if program.run is None else ["bash", "-c", program.run],
        named.compile if program.compile is None else ["bash", "-c", program.compile],
        {**named.environment, "SOLUTION": source, "BUILD": build},
    )
