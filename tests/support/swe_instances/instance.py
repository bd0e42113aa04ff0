"""One instance: two neighbouring releases of a package, an image with the older one, and a row in the shape of a family."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollyard.image_builds.run_build import BuildOptions, run_build
from rollyard.sandbox.build_once import build_once
from rollyard.tasks.swe.log_parsers.family_names import own_name
from rollyard.tasks.swe.log_parsers.parser_choice import parse_log
from rollyard.tasks.swe.log_parsers.status import LogStatus
from tests.support.swe_instances.base_roots import ENVIRONMENT, base_root
from tests.support.swe_instances.by_hand import passed_by_hand, run_by_hand
from tests.support.swe_instances.families import FAMILIES, PARSERS, Made
from tests.support.swe_instances.releases import CACHED, release

_FORMAT = 2
"""Number in the cache's names; raise it when what is made changes."""


@dataclass(frozen=True)
class Pair:
    """Two releases, and how their tests run."""

    language: str
    registry: str
    name: str
    old: str
    new: str
    family: str
    tests: str = r"(^|/)tests?/|_test\.go$"
    """Expression for the paths of tests."""

    @property
    def id(self) -> str:
        return f"{self.name.partition(':')[0]}-{self.new}-{self.family}"

    def command(self, files: Sequence[str]) -> str:
        """Return the command of these test files."""
        names = shlex.join(files)
        match self.language:
            case "python":
                return f"pytest -rA {names}"
            case "javascript":
                return f"for file in {names}; do node $file; done"
            case "rust":
                chosen = " ".join(f"--test {os.path.basename(file).removesuffix('.rs')}" for file in files)
                return f"cargo test --offline --no-fail-fast {chosen}"
        return f"go test -v {shlex.join(sorted({'./' + os.path.dirname(file) for file in files}))}"


@dataclass(frozen=True)
class Instance:
    pair: Pair
    root: Path
    """Folder of the image."""
    made: Made
    row: dict[str, Any]

    @property
    def enter(self) -> str:
        """Commands that begin every script by hand."""
        return f"cd {FAMILIES[self.pair.family].place}\ngit config --global --add safe.directory '*'"

    def script(self, work: str) -> str:
        """Return the work, the tests put in place, and the tests."""
        return _script(self.pair, self.made, work)

    def by_hand(self, script: str) -> str:
        """Return what a script prints in a chroot of the image."""
        return run_by_hand(self.root, _environment(self.pair), script)

    def passed(self, output: str) -> bool:
        """Return whether each test of the lists passed, as a reader of the output finds it."""
        return {*self.made.failing, *self.made.kept} <= passed_by_hand(self.pair.language, output)


def instance(pair: Pair) -> Instance:
    """Return the instance. It is made once on a machine."""
    digest = hashlib.sha256(repr((_FORMAT, pair)).encode()).hexdigest()[:12]
    folder = build_once(CACHED / "made" / f"{pair.id}-{digest}", lambda growing: _make(pair, growing))
    made, root = Made(**json.loads((folder / "made.json").read_text())), folder / "root"
    return Instance(pair, root, made, FAMILIES[pair.family].row(made, str(root)))


def _make(pair: Pair, folder: Path) -> None:
    context = folder / "context"
    made = _commit_releases(pair, context / "repository")
    family = FAMILIES[pair.family]
    family.prepare(made, context / "repository")
    base = base_root(pair.language)
    lines = [f"FROM {base}", *(f"ENV {name}={value}" for name, value in _environment(pair).items())]
    lines += [f"WORKDIR {family.place}", f"COPY repository/ {family.place}/", *family.dockerfile()]
    (context / "Dockerfile").write_text("\n".join(lines) + "\n")
    options = BuildOptions(context, outputs=[str(folder / "root")], folders=[base])
    with open(os.devnull, "wb") as output:
        asyncio.run(run_build(options, output.fileno(), lambda line: None))
    shutil.rmtree(context)
    root = folder / "root"
    without, right = (_passed(pair, made, root, work) for work in ("", made.apply_patch))
    made.failing, made.kept = sorted(right - without), sorted(right & without)
    assert made.failing, f"{pair.id}: no test fails before the change and passes after it"
    (folder / "made.json").write_text(json.dumps(vars(made)))


def _passed(pair: Pair, made: Made, root: Path, work: str) -> set[str]:
    log = run_by_hand(root, _environment(pair), _script(pair, made, work))
    found = parse_log(own_name("swebench", PARSERS[pair.language]), log)
    return {name for name, status in found.items() if status is LogStatus.PASSED}


def _environment(pair: Pair) -> dict[str, str]:
    place = FAMILIES[pair.family].place
    return ENVIRONMENT | ({"PYTHONPATH": f"{place}/src:{place}"} if pair.language == "python" else {})


def _script(pair: Pair, made: Made, work: str) -> str:
    family = FAMILIES[pair.family]
    parts = (f"cd {family.place}", "git config --global --add safe.directory '*'", family.before(made), work)
    return "\n".join([*parts, family.put_tests(made), family.command(made), ""])


def _runs(pair: Pair, name: str) -> bool:
    last = name.rpartition("/")[2]
    ending = {"python": ".py", "javascript": ".js", "go": "_test.go", "rust": ".rs"}[pair.language]
    if pair.language == "rust" and name != f"tests/{last}":  # a module of a test, which is no test itself
        return False
    return last.endswith(ending) and (pair.language != "python" or last.startswith("test_"))


def _commit_releases(pair: Pair, folder: Path) -> Made:
    """Make a repository with both releases. The older one is checked out, the newer one has a tag."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for version in (pair.old, pair.new):
        source = release(pair.registry, pair.name, version)
        for path in folder.iterdir():
            if path.name != ".git":
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        shutil.copytree(source, folder, symlinks=True, dirs_exist_ok=True)
        git(folder, "add", "-A", "-f")
        git(folder, "commit", "-q", "-m", f"Release {version}")
    git(folder, "tag", "newer")
    changed = git(folder, "diff", "--name-only", "--no-renames", "HEAD~1", "HEAD").splitlines()
    tests = [name for name in changed if re.search(pair.tests, name)]
    sources = [name for name in changed if name not in tests]
    files = [name for name in tests if _runs(pair, name) and (folder / name).exists()]
    assert sources, f"{pair.id}: the releases differ by no source"
    assert files, f"{pair.id}: the releases differ by no test that runs"
    difference = ("diff", "--no-renames", "--no-color", "--binary")
    patch = git(folder, *difference, "HEAD~1", "HEAD", "--", *sources)
    bug = git(folder, *difference, "HEAD", "HEAD~1", "--", *sources)
    test_patch = git(folder, *difference, "HEAD~1", "HEAD", "--", *tests)
    texts = {name: [_text(folder, "HEAD~1", name), _text(folder, "HEAD", name)] for name in sources}
    git(folder, "reset", "-q", "--hard", "HEAD~1")
    base = git(folder, "rev-parse", "HEAD").strip()
    return Made(
        pair.language, pair.name, pair.new, base, patch, bug, test_patch, texts, files, pair.command(files), [], []
    )


def _text(folder: Path, commit: str, name: str) -> str | None:
    try:
        return git(folder, "show", f"{commit}:{name}")
    except subprocess.CalledProcessError:
        return None


def git(folder: Path, *words: str) -> str:
    day = "2026-01-01T00:00:00Z"
    settings = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.org",
        "-c",
        "safe.directory=*",
        "-c",
        "core.autocrlf=false",
    ]
    environment = {**os.environ, "GIT_AUTHOR_DATE": day, "GIT_COMMITTER_DATE": day}
    done = subprocess.run(["git", "-C", folder, *settings, *words], env=environment, capture_output=True, check=True)
    return done.stdout.decode("utf-8", "surrogateescape")
