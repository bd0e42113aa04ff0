"""A real registry (Debian's docker-registry), small images that tests make and push, and a front that fails on demand."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import http.client
import io
import json
import re
import subprocess
import tarfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from rollyard.images.oci_manifest import INDEX_TYPES, MANIFEST_TYPES, machine
from tests.support.debian_packages import debian_program

OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_CONFIG = """version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}, delete: {{enabled: true}}}}
http: {{addr: "{address}:0", secret: none{tls}}}
{auth}
"""


def registry_program() -> Path:
    """Return the program."""
    return debian_program("docker-registry", "usr/bin/docker-registry")


@contextmanager
def running_registry(
    folder: Path, htpasswd: str | None = None, *, address: str = "127.0.0.1", certificate: Path | None = None
) -> Iterator[str]:
    """Run a registry with its data in `folder`. Yields HOST:PORT. `certificate`: file for TLS, with its key."""
    auth, tls = "", f", tls: {{certificate: {certificate}, key: {certificate}}}" if certificate else ""
    if htpasswd is not None:
        (folder / "htpasswd").write_text(htpasswd)
        auth = f"auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}"
    (folder / "config.yml").write_text(_CONFIG.format(folder=folder, auth=auth, address=address, tls=tls))
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [registry_program(), "serve", str(folder / "config.yml")], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        deadline = time.monotonic() + 120
        while (port := _listening_port(process.pid)) is None:
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "the registry does not listen"
            time.sleep(0.02)
        yield f"{address}:{port}"
    finally:
        process.terminate()
        process.wait(60)


def _listening_port(pid: int) -> int | None:
    """Return the port of the process's one listening socket; the registry's log does not name it."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.update(re.findall(r"socket:\[(\d+)\]", str(fd.readlink())))
        except FileNotFoundError:
            continue
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        columns = line.split()
        if columns[3] == "0A" and columns[9] in inodes:
            return int(columns[1].partition(":")[2], 16)
    return None


# images


def tar(*entries: tuple[str, Any] | tuple[str, bytes, int], **extra: Any) -> bytes:
    """Make a tar archive. An entry is (name, bytes of a file), the same with the file's mode, (name, None) for a folder, or
    (name, TarInfo's attributes)."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", **extra) as archive:
        for name, content, *mode in entries:
            info = tarfile.TarInfo(name)
            info.mtime, info.mode = 1_600_000_000, mode[0] if mode else 0o644
            if content is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            elif isinstance(content, Mapping):
                for key, value in content.items():
                    setattr(info, key, value)
            else:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return data.getvalue()


def symlink(target: str) -> dict[str, Any]:
    return {"type": tarfile.SYMTYPE, "linkname": target}


def hard_link(target: str) -> dict[str, Any]:
    return {"type": tarfile.LNKTYPE, "linkname": target}


def gz(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


BASE = gz(tar(("bin", None), ("bin/tool", b"#!/bin/sh\n"), ("etc", None), ("etc/name", b"base\n")))


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass
class Pusher:
    """Pushes images to a registry."""

    host: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def image(
        self,
        repository: str,
        tag: str,
        layers: Sequence[bytes] = (BASE,),
        config: Mapping[str, Any] | None = None,
        *,
        media: int = 0,
        architecture: str | None = None,
    ) -> str:
        """Push an image with these compressed layers; return the manifest's digest. `media`: 0 for OCI's media types, 1 for
        Docker's."""
        return self.manifest(repository, tag, self.manifest_of(repository, layers, config, media, architecture))

    def manifest_of(
        self,
        repository: str,
        layers: Sequence[bytes],
        config: Mapping[str, Any] | None = None,
        media: int = 0,
        architecture: str | None = None,
    ) -> dict[str, Any]:
        """Push the blobs of an image, and return its manifest."""
        whole = {
            "architecture": architecture or machine(),
            "os": "linux",
            "config": dict(config or {}),
            "rootfs": {"type": "layers"},
        }
        parts = [self.blob(repository, json.dumps(whole).encode()), *(self.blob(repository, one) for one in layers)]
        types = [
            ["application/vnd.oci.image.config.v1+json", OCI_LAYER],
            ["application/vnd.docker.container.image.v1+json", "application/vnd.docker.image.rootfs.diff.tar.gzip"],
        ][media]
        described = [
            {"mediaType": types[min(1, number)], "digest": one, "size": size}
            for number, (one, size) in enumerate(parts)
        ]
        return {
            "schemaVersion": 2, "mediaType": MANIFEST_TYPES[media], "config": described[0], "layers": described[1:]
        }  # fmt: skip

    def index(self, repository: str, tag: str, manifests: Mapping[str, str], *, media: int = 0) -> str:
        """Push an index: architecture, or `ARCHITECTURE/VARIANT`, -> digest of a pushed manifest."""
        listed = [
            {
                "mediaType": MANIFEST_TYPES[media],
                "digest": one,
                "size": 1,
                "platform": dict(zip(("os", "architecture", "variant"), ["linux", *name.split("/")], strict=False)),
            }
            for name, one in manifests.items()
        ]
        whole = {"schemaVersion": 2, "mediaType": INDEX_TYPES[media], "manifests": listed}
        return self.manifest(repository, tag, whole)

    def manifest(self, repository: str, tag: str, manifest: Mapping[str, Any]) -> str:
        data = json.dumps(manifest).encode()
        self._call("PUT", f"/v2/{repository}/manifests/{tag}", data, manifest["mediaType"])
        return digest(data)

    def blob(self, repository: str, data: bytes) -> tuple[str, int]:
        where = self._call("POST", f"/v2/{repository}/blobs/uploads/", b"")
        join = "&" if "?" in where else "?"
        self._call("PUT", f"{where}{join}digest={digest(data)}", data)
        return digest(data), len(data)

    def _call(self, method: str, url: str, body: bytes, kind: str = "application/octet-stream") -> str:
        connection = http.client.HTTPConnection(self.host, timeout=120)
        path = re.sub(r"^https?://[^/]*", "", url)
        connection.request(method, path, body, {"Content-Type": kind, **self.headers})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        assert answer.status in (201, 202), (answer.status, text)
        return answer.headers.get("Location", "")


@dataclass
class Front:
    """A proxy before a registry. It counts the requests, and fails as `faults` says: regular expression on the path ->
    what to do, for the given number of times."""

    registry: str
    faults: list[tuple[str, str, int]] = field(default_factory=list)
    """(path, fault, times). Faults: "503", "404", "429" with the wish to wait a second, "cut" after half of the body, "stall"
    after half of it, "hang" before the answer, "wrong" bytes, "no ranges", "slow SECONDS" before the answer, "down", and
    "to HOST:PORT", a redirect."""
    requests: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    """Bytes of all answers."""
    authorizations: list[str | None] = field(default_factory=list)
    host: str = ""

    async def __aenter__(self) -> Front:
        self._closing = asyncio.Event()
        self._http = aiohttp.ClientSession()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.host = f"127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        await self._runner.cleanup()
        await self._http.close()

    def count(self, pattern: str) -> int:
        return sum(times for path, times in self.requests.items() if re.search(pattern, path))

    def _fault(self, path: str) -> str | None:
        for number, (pattern, fault, times) in enumerate(self.faults):
            if times and re.search(pattern, path):
                self.faults[number] = (pattern, fault, times - 1)
                return fault
        return None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests[request.path] += 1
        self.authorizations.append(request.headers.get("Authorization"))
        fault = self._fault(request.path)
        if fault in ("503", "404", "429"):
            return web.Response(status=int(fault), headers={"Retry-After": "1"} if fault == "429" else {})
        if fault is not None and fault.startswith("to "):
            return web.Response(status=307, headers={"Location": f"http://{fault[3:]}{request.path}"})
        if fault is not None and fault.startswith("slow "):
            await asyncio.sleep(float(fault.removeprefix("slow ")))
        if fault == "down":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if fault == "hang":
            await self._closing.wait()
            return web.Response(status=503)
        kept = {"Accept", "Authorization", "Range"} - ({"Range"} if fault == "no ranges" else set())
        headers = {name: value for name, value in request.headers.items() if name in kept}
        async with self._http.get(f"http://{self.registry}{request.path_qs}", headers=headers) as answer:
            body = await answer.read()
            passed = ("Content-Type", "Content-Range", "Www-Authenticate", "Docker-Content-Digest")
            response = web.StreamResponse(
                status=answer.status, headers={name: answer.headers[name] for name in passed if name in answer.headers}
            )
        response.content_length = len(body)
        self.bytes += len(body)
        if fault == "wrong":
            body = bytes(len(body))
        await response.prepare(request)
        if fault in ("cut", "stall"):
            await response.write(body[: len(body) // 2])
            if fault == "stall":
                await self._closing.wait()
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(body)
        return response
