"""The releases that become instances, each in the shape of one family."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.swe_instances.instance import Pair

_PYTHON = """
sqlparse 0.4.1 0.4.2 swe-bench
sqlparse 0.4.2 0.4.3 swe-smith
cachetools 5.0.0 5.1.0 swe-rebench
cachetools 5.1.0 5.2.0 r2e-gym
click 8.0.0 8.0.1 swe-bench
click 8.0.1 8.0.2 swe-next
click 8.0.2 8.0.3 swe-rebench
click 8.0.3 8.0.4 nv-internal-1
cachetools 5.2.0 5.3.0 nv-internal-1
cachetools 4.2.4 5.0.0 swe-rebench
click 8.1.2 8.1.3 r2e-gym
"""
_JAVASCRIPT = """
minimist 1.2.5 1.2.6 swe-bench
minimist 1.2.5 1.2.6 nv-internal-1
minimist 1.2.7 1.2.8 nv-internal-1
shell-quote 1.7.2 1.7.3 swe-bench
shell-quote 1.7.4 1.8.0 swe-rebench
shell-quote 1.8.0 1.8.1 nv-internal-1
shell-quote 1.8.1 1.8.2 swe-bench
shell-quote 1.8.2 1.8.3 swe-rebench
object-inspect 1.11.1 1.12.0 swe-bench
object-inspect 1.12.3 1.13.0 nv-internal-1
"""
_GO = """
google-uuid google/uuid bullseye bookworm swe-bench
google-uuid google/uuid bookworm trixie nv-internal-1
hashicorp-go-version hashicorp/go-version bullseye bookworm swe-rebench
hashicorp-go-version hashicorp/go-version bookworm trixie swe-bench
mitchellh-mapstructure mitchellh/mapstructure bullseye bookworm nv-internal-1
gorilla-mux gorilla/mux bullseye bookworm swe-bench
gorilla-mux gorilla/mux bookworm trixie swe-rebench
"""
"""Names of Debian's packages without their ends, import paths, and the releases of Debian with the two versions."""
_RUST = """
strsim bookworm trixie swe-rebench
itoa bullseye bookworm nv-internal-1
semver bookworm trixie swe-bench
"""
"""Crates, and the releases of Debian with the two versions."""


def _pairs() -> Iterator[Pair]:
    for language, registry, lines in (("python", "pypi", _PYTHON), ("javascript", "npm", _JAVASCRIPT)):
        yield from (Pair(language, registry, *line.split()) for line in lines.strip().splitlines())
    for package, path, *words in (line.split() for line in _GO.strip().splitlines()):
        yield Pair("go", "debian", f"golang-github-{package}-dev:github.com/{path}", *words)
    for crate, *words in (line.split() for line in _RUST.strip().splitlines()):
        yield Pair("rust", "debian", f"librust-{crate}-dev", *words)


PAIRS = tuple(_pairs())
SHORT = next(pair for pair in PAIRS if pair.name == "cachetools")
"""Pair of the short forms of tests: its own tests take a tenth of a second."""
MEASURED = tuple(next(pair for pair in PAIRS if pair.language == one) for one in ("python", "javascript", "go"))
"""Those of bench/tasks.py."""
