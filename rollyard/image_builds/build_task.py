"""One of many builds, as a folder: the task, the output of the build, and its result. Any process on any node that sees the
folder can run the task."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollyard.core.errors import ImageBuildFailed, RollyardError
from rollyard.core.lagging_files import read_when_complete
from rollyard.image_builds.run_build import BuildOptions, run_build
from rollyard.images.settings import CacheSettings

LOG = "log"


@dataclass(frozen=True)
class BuildResult:
    digest: str | None
    """None if the build failed."""
    error: str = ""


class BuildTask:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / LOG

    def write(self, options: BuildOptions) -> None:
        """Make the folder. Paths are stored as absolute paths."""
        self.folder.mkdir()
        data = {
            "context": str(options.context.resolve()),
            "file": None if options.file is None else str(options.file.resolve()),
            "outputs": list(options.outputs),
            "shared": None if options.shared is None else str(options.shared.resolve()),
            "arguments": dict(options.arguments),
            "target": options.target,
            "network": options.network,
            "runtime": options.runtime,
            "use_cache": options.use_cache,
            "images": asdict(options.images),
            "folders": [str(folder.resolve()) for folder in options.folders],
        }
        (self.folder / "task.json").write_text(json.dumps(data))

    def result(self) -> BuildResult | None:
        """Return the result; None as long as there is no complete one."""
        try:
            return BuildResult(**json.loads((self.folder / "result.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    async def run(self, output: int, say: Callable[[str], None]) -> BuildResult:
        """Build, and keep the result."""
        try:
            result = BuildResult(await run_build(self._options(), output, say))
        except RollyardError as error:
            result = BuildResult(None, str(error))
        self._keep(result)
        return result

    def last_line(self) -> str:
        """Return the last line of the output; empty if there is none."""
        try:
            lines = self.log.read_text(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _keep(self, result: BuildResult) -> None:
        growing = self.folder / f".result.{secrets.token_hex(4)}"
        growing.write_text(json.dumps({"digest": result.digest, "error": result.error}))
        os.replace(growing, self.folder / "result.json")

    def _options(self) -> BuildOptions:
        try:
            file = self.folder / "task.json"
            data: dict[str, Any] = read_when_complete(lambda: json.loads(file.read_bytes()), str(file))
        except (OSError, ValueError) as error:
            raise ImageBuildFailed(f"{self.folder} is not a folder of a build: {error}") from None
        return BuildOptions(
            **{
                **data,
                "context": Path(data["context"]),
                **{name: None if data[name] is None else Path(data[name]) for name in ("file", "shared")},
                "images": CacheSettings(**data["images"]),
                "folders": [Path(folder) for folder in data["folders"]],
            }
        )
