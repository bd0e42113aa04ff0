"""Every block of code in README and docs does what it says: commands and Python on a real server, YAML by the real loader.

A block that cannot run here says why in a comment before it (`<!-- not run: REASON -->`); `-rs` lists them.
"""

from __future__ import annotations

import contextlib
import doctest
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml

from rollyard.kinds.rollout import RolloutRequest
from rollyard.kinds.schema.yaml import load_manifests
from tests.docs.blocks import BLOCKS, LANGUAGES, ROOT, SHELL, Block
from tests.support import forked_commands
from tests.support.small_roots import busybox_root
from tests.support.yard import Yard, end

pytestmark = pytest.mark.slow(125)
RUN_SECONDS = 1200.0
"""They take less than one minute on a machine of one's own."""
AT_REST = (
    "until rollyard get rp demo -o jsonpath=\"{.status.stages.*['queued','inFlight']}\" | grep -qx '0 0 0 0 0 0'; "
    "do sleep 0.1; done"
)
"""The status of a pool follows its rollouts with a delay, and the pages show a pool at rest."""
FEWER = {
    "--kind code --n 8 --seed 1": "--kind code --n 2 --seed 1",
    "--pool demo --n 4 --wait": "--pool demo --n 1 --wait",
    "task=task, n=4)": "task=task, n=1)",
    "n=4, target=2,": "n=2, target=1, epochs=1,",
}
"""Counts of the pages, and what suffices here: each rollout starts sandboxes, and a batch without an end draws ahead."""
RUN = [b for b in BLOCKS if b.language in (*SHELL, "python") and not b.left_out]
LEFT_OUT = [b for b in BLOCKS if b.left_out]


@pytest.fixture
async def yard() -> AsyncIterator[Yard]:
    with tempfile.TemporaryDirectory(prefix="rollyard-docs-") as folder:
        os.chmod(folder, 0o755)  # the sandboxes' account reaches images in it
        made = Yard(Path(folder))
        busybox_root(made.folder / "debian")
        yield made
        await end(made)


def test_every_block_runs_in_the_order_of_the_pages(yard: Yard) -> None:
    assert all(any(count in block.text for block in RUN) for count in FEWER)
    script = yard.folder / "all.sh"
    script.write_text("\n".join(_lines(yard.folder)))
    programs = yard.folder / "programs"
    programs.mkdir()
    with forked_commands.as_program(programs), (yard.folder / "out.txt").open("w") as out:
        shell = subprocess.Popen(
            ["bash", script], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
            env=_environment(yard.folder), start_new_session=True,
        )  # fmt: skip
        try:
            code = shell.wait(RUN_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):  # the server too, where a command before the last one failed
                os.killpg(shell.pid, signal.SIGTERM)
            shell.wait(60)
    said = (yard.folder / "out.txt").read_text()
    print(said)
    assert code == 0, f"{said.rpartition('=== ')[2].splitlines()[0]} failed:\n{said[-4000:]}"
    for block, command, shown in _shown(yard.folder):
        got = command.read_text().replace(",EnoughMemory=False", "")  # a busy machine has room for fewer sandboxes
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        assert doctest.OutputChecker().check_output(shown, got, flags), f"{block.name} shows\n{shown}\nand not\n{got}"


def _environment(folder: Path) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "PYTEST", "ROLLYARD_KUBECONFIG"))}
    return {
        **own,
        "HOME": str(folder),
        "ROLLYARD_CACHE": os.environ.get("ROLLYARD_CACHE", str(Path.home() / ".cache" / "rollyard")),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SSL_CERT_FILE": str(folder / "data" / "ca.pem"),
        "COLUMNS": "200",
    }


def _lines(folder: Path) -> Iterator[str]:
    """One script: the tour of README in the shell itself, for its server stays; each other block in a shell of its own.
    The commands of the tour's first block are processes of their own, those of the others forks."""
    yield "set -euo pipefail"
    for block in sorted(RUN, key=lambda b: b.last):
        yield f'echo "=== {block.name} after $SECONDS s"'
        own_shell = block.page != ROOT / "README.md" or block.language == "python"
        yield "(" if own_shell else ""
        if block is not RUN[0]:
            yield f"PATH={folder}/programs:$PATH"
        yield from _commands(block, folder)
        yield ")" if own_shell else ""


def _commands(block: Block, folder: Path) -> Iterator[str]:
    text = _here(block.text, folder)
    if block.language == "python":
        file = folder / f"{block.page.stem}-{block.line}.py"
        file.write_text(text)
        yield f"python -W error::SyntaxWarning {file}"
    elif block.language == "console":
        yield AT_REST
        for command, path, _ in _exchanges(block, folder):
            yield f"{{ {_here(command, folder)}; }} 2>&1 | tee {path}"
    else:
        yield text


def _here(text: str, folder: Path) -> str:
    """Put the pages' files in /tmp into the test's folder, and run jobs as processes, also where there is a Slurm."""
    text = re.sub("/tmp/(yard)?", lambda m: f"{folder}/data" if m[1] else f"{folder}/", text)
    # Docker Hub may be out of reach
    text = text.replace("FROM debian:12", f"FROM {folder}/debian")
    text = text.replace("Bootstrap: docker\nFrom: debian:12", f"Bootstrap: localimage\nFrom: {folder}/debian")
    text = re.sub(
        "rollyard (images build(-many)?|tasks import harbor) ", rf"\g<0>--allow-folder {folder}/debian ", text
    )
    text = text.replace("rollyard serve ", "rollyard serve --cluster local ")
    for ours, less in FEWER.items():
        text = text.replace(ours, less)
    return text


def _exchanges(block: Block, folder: Path) -> Iterator[tuple[str, Path, str]]:
    """(command, file of its output, output that the page shows)"""
    for i, part in enumerate(("\n" + block.text).split("\n$ ")[1:]):
        command, _, shown = part.partition("\n")
        yield command, folder / f"{block.page.stem}-{block.line}-{i}.txt", shown


def _shown(folder: Path) -> Iterator[tuple[Block, Path, str]]:
    for block in RUN:
        if block.language == "console":
            for _, path, shown in _exchanges(block, folder):
                yield block, path, _here(shown if shown.endswith("\n") else f"{shown}\n", folder)


@pytest.mark.parametrize("block", LEFT_OUT, ids=lambda block: block.name)
def test_a_block_that_is_not_run_says_why(block: Block) -> None:
    assert len(block.left_out.split()) > 2
    pytest.skip(f"{block.name}: {block.left_out}")


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language not in (*SHELL, "python")], ids=lambda b: b.name)
def test_what_is_shown_can_be_read(block: Block) -> None:
    assert block.language in LANGUAGES, f"mark the block as one of {LANGUAGES}"
    match block.language:
        case "yaml" if block.note.startswith("another program's file: "):
            yaml.safe_load(block.text)
        case "yaml":
            load_manifests(_whole(block), block.name, ROOT)
        case "json" if block.note.startswith("another program's file: "):
            json.loads(block.text)
        case "json":
            RolloutRequest.model_validate(json.loads(block.text))
        case "toml":
            tomllib.loads(block.text)


def _whole(block: Block) -> str:
    """A fragment in the place that its comment names, with what the demo's pool of that kind has beside it."""
    if not block.part_of:
        return block.text
    kind, field = block.part_of.split()
    pools = yaml.safe_load_all((ROOT / "examples" / "demo" / "pools.yaml").read_text())
    pool = next(p for p in pools if p["kind"] == kind)
    sizes = ("replicas", "autoscaling") if "autoscaling" in yaml.safe_load(block.text) else ()
    kept = {k: v for k, v in pool.pop(field).items() if k not in (*yaml.safe_load(block.text), *sizes)}
    return f"{yaml.safe_dump(pool)}{field}:\n{textwrap.indent(yaml.safe_dump(kept) + block.text, '  ')}"
