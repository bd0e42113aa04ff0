"""Cache of chat templates, and of the proofs of their tool calls. A process keeps one template for each folder."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from pathlib import Path

from rollyard.core.aio import Signal
from rollyard.core.errors import TemplateUnusable
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.tool_proof import prove_tool_calls
from rollyard.wire.tool_proof import TemplateProof, ToolProof

FILES = ("*.json", "*.jinja", "*.model", "*.txt", "additional_chat_templates/*")
"""Patterns of the files from which a tokenizer and its template are loaded."""

Stamp = tuple[tuple[str, int, int], ...]


class TemplateCache:
    """Loads each template once, in a thread, because a load and the import of transformers take seconds.

    A template that cannot be used is loaded again only if its files have changed.
    """

    def __init__(self, threads: Executor | None = None) -> None:
        self._threads = threads
        self._loading: dict[str, asyncio.Future[ChatTemplate]] = {}
        self._refused: dict[str, tuple[Stamp, str]] = {}
        self._proofs: dict[tuple[str, str | None], ToolProof] = {}
        self.proven = Signal[TemplateProof]()
        """Signal: a template's tool calls were tried out for the first time."""

    async def get(self, folder: str) -> ChatTemplate:
        """Return the template. Raises TemplateUnusable."""
        loading = self._loading.get(folder)
        if loading is None:
            loading = asyncio.get_running_loop().run_in_executor(self._threads, self._load, folder)
            self._loading[folder] = loading
        try:
            return await asyncio.shield(loading)
        finally:
            failed = loading.done() and (loading.cancelled() or loading.exception() is not None)
            if failed and self._loading.get(folder) is loading:
                del self._loading[folder]

    async def proof(self, folder: str, tool_parser: str | None) -> ToolProof:
        """Return whether tool calls under this template are read. `tool_parser`: parser to use; None: the one that fits the
        template. Raises TemplateUnusable."""
        template = await self.get(folder)
        if (folder, tool_parser) not in self._proofs:
            loop = asyncio.get_running_loop()
            proof = await loop.run_in_executor(self._threads, prove_tool_calls, template, tool_parser)
            self._proofs[folder, tool_parser] = proof
            self.proven.emit(TemplateProof(tokenizer=folder, proof=proof))
        return self._proofs[folder, tool_parser]

    def proofs(self) -> list[TemplateProof]:
        """Return all proofs so far."""
        return [TemplateProof(tokenizer=folder, proof=proof) for (folder, _), proof in self._proofs.items()]

    def close(self) -> None:
        for loading in self._loading.values():
            loading.cancel()

    def _load(self, folder: str) -> ChatTemplate:
        stamp = files_stamp(Path(folder))
        then, why = self._refused.get(folder, (None, ""))
        if then == stamp:
            raise TemplateUnusable(why)
        try:
            return ChatTemplate.load(Path(folder))
        except TemplateUnusable as error:
            self._refused[folder] = stamp, str(error)
            raise


def files_stamp(folder: Path) -> Stamp:
    """Return names, times and sizes of the files. The result changes if a file of the tokenizer or template is
    written."""
    found = sorted({file for pattern in FILES for file in folder.glob(pattern) if file.is_file()})
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in found)
