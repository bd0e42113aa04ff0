"""The engine's process: from the command line to a clean exit.

Exit status: 0 after SIGTERM or SIGINT, 1 when the engine failed, 2 for a model or an option that cannot be used.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import logging
import os
import signal
import sys
from pathlib import Path

from aiohttp import web
from tokenizers import Tokenizer

from rollyard.core.aio import running
from rollyard.core.errors import Invalid, RollyardError
from rollyard.core.regular_file import open_regular
from rollyard.core.telemetry import set_up_logging
from rollyard.engine.embedded.completions_api import ServedModel
from rollyard.engine.embedded.http_server import EngineServer
from rollyard.engine.embedded.model import Model
from rollyard.engine.embedded.model_weights import load_weights
from rollyard.model_folder.model_config import read_config

logger = logging.getLogger(__name__)


def main() -> int:
    options = _options()
    set_up_logging()
    _die_with_parent()
    options.uds.unlink(missing_ok=True)  # a killed predecessor leaves its socket
    try:
        return asyncio.run(_serve(options))
    except RollyardError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the supervisor shows the last lines of stderr
        return 2
    finally:
        options.uds.unlink(missing_ok=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rollyard.engine.embedded", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder in Hugging Face layout")
    parser.add_argument("--tokenizer", type=Path, help="folder of the tokenizer (default: the folder of the model)")
    parser.add_argument("--served-name", required=True, help="the model's name in requests")
    parser.add_argument("--uds", type=Path, required=True, help="Unix socket to listen on")
    parser.add_argument("--max-model-len", type=int, help="longest sequence in tokens (default: the model's limit)")
    parser.add_argument(
        "--max-sequences", type=int, default=32, help="greatest number of sequences in a batch (%(default)s)"
    )
    return parser.parse_args()


async def _serve(options: argparse.Namespace) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    model, served = await asyncio.to_thread(_load, options)
    server = EngineServer(model, served, max_sequences=options.max_sequences)
    server.start()
    runner = web.AppRunner(server.application(), handler_cancellation=True, shutdown_timeout=5.0, access_log=None)
    await runner.setup()
    try:
        await _listen(runner, options.uds)
        logger.info("serving %s as %r, %d tokens of context", options.model, served.name, served.max_model_len)
        async with running(stop.wait()) as stopped, running(server.failed.wait()) as failed:
            await asyncio.wait({stopped, failed}, return_when=asyncio.FIRST_COMPLETED)
        await server.stop()
    finally:
        await runner.cleanup()
    return 1 if server.failed.is_set() else 0


def _load(options: argparse.Namespace) -> tuple[Model, ServedModel]:
    """Load the model. Raises Invalid if the engine cannot serve the model, or if an option is out of range."""
    config = read_config(options.model)
    length = options.max_model_len or config.max_positions
    if not 2 <= length <= config.max_positions:
        raise Invalid(f"--max-model-len must be between 2 and the model's {config.max_positions}, but is {length}")
    if options.max_sequences < 1:
        raise Invalid(f"--max-sequences must be at least 1, but is {options.max_sequences}")
    tokenizer = _read_tokenizer((options.tokenizer or options.model) / "tokenizer.json")
    model = Model(config, load_weights(options.model, config), length)
    served = ServedModel(options.served_name, tokenizer, config.vocab_size, length, config.eos_ids)
    return model, served


def _read_tokenizer(path: Path) -> Tokenizer:
    """Raises Invalid if the file is missing or is not a tokenizer."""
    try:
        with open_regular(path) as file:
            text = file.read()
    except FileNotFoundError:
        raise Invalid(f"{path} is missing; the embedded engine needs this file of a tokenizer") from None
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}") from None
    try:
        return Tokenizer.from_buffer(text)
    except Exception as error:  # noqa: BLE001 - tokenizers raises Exception itself
        raise Invalid(f"{path} is not a tokenizer of the library tokenizers: {error}") from None


async def _listen(runner: web.AppRunner, path: Path) -> None:
    """Listen on a socket that only this user may open."""
    before = os.umask(0o177)
    try:
        await web.UnixSite(runner, path).start()
    finally:
        os.umask(before)


def _die_with_parent() -> None:
    """Let the kernel send SIGTERM to this process when the thread that started it ends. The parent process must keep
    that thread as long as it needs the engine."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM)
