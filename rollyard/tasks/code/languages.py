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
    spare_bytes: int = 0
    """Memory that a virtual machine needs beside the heap of the program."""


def _native(*compiler: str, after: Words = ()) -> Callable[[str, str, int], Commands]:
    def commands(source: str, build: str, memory: int) -> Commands:
        return Commands([f"{build}/program"], [*compiler, "-o", f"{build}/program", source, *after])

    return commands


def _go(source: str, build: str, memory: int) -> Commands:
    own = {"GOCACHE": f"{build}/cache", "GOPATH": f"{build}/path", "GO111MODULE": "off", "CGO_ENABLED": "0"}
    own["GOMEMLIMIT"] = str(memory * 7 // 8)  # garbage alone does not bring it to its limit
    return Commands([f"{build}/program"], ["go", "build", "-o", f"{build}/program", source], own)


def _java(source: str, build: str, memory: int) -> Commands:
    """The main class has the name of the file."""
    small = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
    run = [
        "java",
        f"-Xmx{memory >> 20}m",
        "-Xss64m",
        *small,
        "-cp",
        build,
        posixpath.basename(source).removesuffix(".java"),
    ]
    compiler = ["javac", "-J-Xmx256m", *(f"-J{one}" for one in small), "-encoding", "UTF-8", "-d", build, source]
    return Commands(run, compiler, spare_bytes=128 << 20)


def _javascript(source: str, build: str, memory: int) -> Commands:
    heap = f"--max-old-space-size={max(memory >> 20, 1)}"
    return Commands(["node", heap, f"--stack-size={_NODE_STACK_KIB}", source], spare_bytes=64 << 20)


_NODE_STACK_KIB = 64 << 10
"""Node's own limit is 1 MiB, which deep recursion soon reaches."""
_LANGUAGES: dict[str, Callable[[str, str, int], Commands]] = {
    "python": lambda source, build, memory: Commands(["python3", source]),
    "javascript": _javascript,
    "c": _native("gcc", "-O2", "-std=gnu11", "-xc", after=["-xnone", "-lm"]),
    "cpp": _native("g++", "-O2", "-std=gnu++17", "-xc++"),
    "rust": _native("rustc", "-O", "--edition=2021"),
    "go": _go,
    "java": _java,
}


def commands_of(program: ProgramFields, source: str, memory: int, build: str = BUILD) -> Commands:
    """Return the commands of a program whose source is the file `source`. `memory`: bytes for its data."""
    named = _LANGUAGES[program.language](source, build, memory) if program.language is not None else Commands(())
    return Commands(
        named.run if program.run is None else ["bash", "-c", program.run],
        named.compile if program.compile is None else ["bash", "-c", program.compile],
        {**named.environment, "SOLUTION": source, "BUILD": build},
        named.spare_bytes if program.run is None else 0,
    )
