"""A program in vLLM's place that gives written answers. It has vLLM's command line, and serves on a Unix socket."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from rollyard.tokens.chat_template import ChatTemplate
from simulation.upstream import Script, Upstream

ROOT = Path(__file__).resolve().parents[2]
TURNS = "ROLLYARD_TEST_TURNS"
"""Variable with the file of the turns."""
PACE = "ROLLYARD_TEST_PACE"
"""Variable with the seconds between two chunks."""
FILES = {
    "vllm/__init__.py": "__version__ = '0.32.0'\n",
    "vllm/platforms.py": "class current_platform:\n    device_type = 'cuda'\n",
    "vllm/entrypoints/cli/main.py": f"from {__name__} import main\n",
}
NONCE = "NONCE"
SAMPLED = ".sampled"
"""Ending of the file with a line for each turn whose sampling began, beside that of the turns: the conversation's name, and a
digest of the turn's ids."""
PACE_SECONDS = 0.02
"""Between two chunks, so that kills hit answers too."""


def scripted_pool(
    folder: Path, model: Path, turns: Mapping[str, Sequence[str]], pace: float = PACE_SECONDS
) -> dict[str, Any]:
    """Install the program and a model of a shape that only vLLM knows; return changes of an InferencePool's spec. `turns`:
    name of a conversation, which is a text of its prompt -> texts of the model. `pace`: seconds for 16 tokens."""
    for name, text in FILES.items():
        path = folder / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    own = Path(shutil.copytree(model, folder / "scripted-model"))
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps({**config, "attention_bias": True}))
    (folder / "turns.json").write_text(json.dumps(turns))
    env = {
        "PYTHONPATH": f"{folder}/packages:{Path(__file__).parent}/without_torch:{ROOT}",
        TURNS: f"{folder}/turns.json",
        PACE: str(pace),
    }
    return {"model": {"path": str(own)}, "engine": {"embedded": None, "vllm": {"python": sys.executable, "env": env}}}


def script_of(template: ChatTemplate, turns: Mapping[str, Sequence[str]], log: Path | None = None) -> Script:
    """Return the script of given turns for each conversation. The names of the conversations are texts of their prompts. NONCE
    in a turn becomes another word each time. `log`: file that gets a line for each turn, the conversation's name."""

    def script(number: int, prompt: Sequence[int]) -> list[int]:
        text = template.decode(prompt)
        ((name, said),) = [one for one in turns.items() if one[0] in text]
        turn = said[text.count("<|im_start|>assistant") - 1].replace(NONCE, secrets.token_hex(4))
        ids = [*template.encode(turn), template.stop_ids[0]]
        if log is not None:
            with log.open("a") as file:
                file.write(f"{name} {digest(ids)}\n")
        return ids

    return script


def digest(ids: Sequence[int]) -> str:
    """Return a short text that stands for these ids."""
    return hashlib.sha256(repr(list(ids)).encode()).hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser(prog="vllm")
    serve = parser.add_subparsers().add_parser("serve")
    serve.add_argument("model", type=Path)
    serve.add_argument("--served-model-name")
    serve.add_argument("--uds", type=Path)
    serve.add_argument("--tensor-parallel-size")
    serve.add_argument("--pipeline-parallel-size")
    asyncio.run(_serve(parser.parse_args()))


async def _serve(options: argparse.Namespace) -> None:
    template, turns = ChatTemplate.load(options.model), json.loads(Path(os.environ[TURNS]).read_text())
    log = Path(os.environ[TURNS]).with_suffix(SAMPLED)
    upstream = Upstream(
        script_of(template, turns, log), sizes=(16,), pace=float(os.environ[PACE]), model=options.served_model_name
    )
    app = upstream.application()
    for path in ("/health", "/metrics", "/is_paused"):
        app.router.add_get(path, _empty)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    options.uds.unlink(missing_ok=True)
    await web.UnixSite(runner, options.uds).start()
    await asyncio.Event().wait()


async def _empty(_: web.Request) -> web.Response:
    return web.Response(text="")
