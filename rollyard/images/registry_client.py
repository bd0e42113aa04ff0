"""Client of OCI registries: manifests and blobs, with authentication, retries and verified digests."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar
from urllib.parse import urljoin

import aiohttp
from yarl import URL

from rollyard.core.backoff import Backoff
from rollyard.core.errors import ImageUnavailable, connection_failure_text
from rollyard.images.base import DiskFull
from rollyard.images.credentials import UnusableCredentials, basic_credentials
from rollyard.images.oci_manifest import INDEX_TYPES, MANIFEST_TYPES, Descriptor
from rollyard.images.registry_health import RegistryHealth
from rollyard.images.site_certificates import tls_context
from rollyard.kinds.values.image_reference import DOCKER_HUB, RegistryImage

if TYPE_CHECKING:
    from hashlib import _Hash

log = logging.getLogger(__name__)

PROBE_SECONDS = 10.0
"""Seconds for which a registry may take to say that it is there."""
ATTEMPTS = 4
"""Attempts at one request. For a blob, only attempts with less than _LEAST_PROGRESS count."""
CONNECT_SECONDS = 15.0
STALL_SECONDS = 30.0
"""Seconds without a byte after which an attempt counts as failed."""
_CHUNK = 1 << 20
_LEAST_PROGRESS = 64 << 10
"""Bytes."""
_MOST_MANIFEST = 8 << 20
_MOST_TOKEN = 1 << 20
_MOST_REDIRECTS = 5
_HUB_HOST = "registry-1.docker.io"
_CHALLENGE = re.compile(r'([a-zA-Z_]+)="([^"]*)"')
_RANGE = re.compile(r"bytes (\d+)-")

T = TypeVar("T")


class _Failed(Exception):
    """`str()` is a sentence about the registry. `again`: a retry may help."""

    def __init__(self, why: str, *, again: bool, after: float = 0.0) -> None:
        super().__init__(why)
        self.again = again
        self.after = after


class RegistryClient:
    """Connections to the registry of one image. Use as an async context manager."""

    def __init__(
        self,
        image: RegistryImage,
        *,
        credentials_file: str | None = None,
        insecure: Sequence[str] = (),
        health: RegistryHealth | None = None,
    ) -> None:
        """`health`: what is known about registries that do not answer."""
        self._health = health or RegistryHealth()
        self._image = image
        self._file = credentials_file
        self._insecure = insecure
        host = _HUB_HOST if image.host == DOCKER_HUB else image.host
        scheme = "http" if self._plain_http(image.host) else "https"
        self._root = f"{scheme}://{host}/v2/"
        self._base = f"{self._root}{image.repository}"
        self._authorization: str | None = None
        self._signing_in = asyncio.Lock()
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=STALL_SECONDS)

    async def __aenter__(self) -> RegistryClient:
        try:
            tls = await asyncio.to_thread(tls_context) if self._root.startswith("https:") else None
        except ValueError as error:
            raise ImageUnavailable(self._image.text, str(error), permanent=True) from None
        # trust_env: many compute nodes reach other hosts only through their site's proxy
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls or True),
            timeout=self._timeout,
            trust_env=True,
            auto_decompress=False,
            read_bufsize=_CHUNK,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def manifest(self, tag_or_digest: str) -> tuple[bytes, str]:
        """Return a manifest or an index, and its digest. Raises ImageUnavailable."""

        async def once() -> tuple[bytes, str]:
            headers = {"Accept": ", ".join([*MANIFEST_TYPES, *INDEX_TYPES])}
            async with self._get(f"{self._base}/manifests/{tag_or_digest}", headers) as response:
                data = await _read_all(response, _MOST_MANIFEST)
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
            if tag_or_digest.startswith("sha256:") and digest != tag_or_digest:
                raise _Failed(f"the registry {self._image.host} sent a manifest with a wrong digest", again=True)
            return data, digest

        return await self._attempts(once, lambda: 0)

    async def blob(self, blob: Descriptor, path: Path) -> None:
        """Download a blob to `path`, which is absent or holds the start of the blob. Raises ImageUnavailable, DiskFull."""

        async def once() -> None:
            file, have, hashed = await asyncio.to_thread(_open_part, path, blob.size)
            with file:
                headers = {"Range": f"bytes={have}-"} if have else {}
                async with self._get(f"{self._base}/blobs/{blob.digest}", headers) as response:
                    if have and not _continues(response, have):
                        hashed, have = hashlib.sha256(), 0
                        file.seek(0)
                        file.truncate()
                    async for chunk in response.content.iter_chunked(_CHUNK):
                        have += len(chunk)
                        if have > blob.size:
                            break
                        await asyncio.to_thread(file.write, chunk)
                        hashed.update(chunk)
                if have > blob.size or (have == blob.size and f"sha256:{hashed.hexdigest()}" != blob.digest):
                    file.truncate(0)
                    raise _Failed(
                        f"the registry {self._image.host} sent wrong bytes for layer {blob.digest}: push the image again",
                        again=True,
                    )
            if have < blob.size:
                raise _Failed(
                    f"the registry {self._image.host} sent {have} of the {blob.size} bytes of layer {blob.digest}",
                    again=True,
                )

        try:
            await self._attempts(once, lambda: _size(path))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(self._image.text, path.parent) from error
            raise ImageUnavailable(self._image.text, f"{path} cannot be written: {error.strerror}") from error

    async def _attempts(self, once: Callable[[], Awaitable[T]], progress: Callable[[], int]) -> T:
        await self._health.check(self._image, self._probe)
        backoff, left, reached = Backoff(0.25, 10.0), ATTEMPTS, progress()
        while True:
            try:
                return await once()
            except _Failed as error:
                if progress() >= reached + _LEAST_PROGRESS:
                    backoff, left, reached = Backoff(0.25, 10.0), ATTEMPTS, progress()
                else:
                    left -= 1
                if not error.again or not left:
                    if error.again:
                        await self._health.after_failure(self._image, self._probe)
                    raise ImageUnavailable(self._image.text, str(error), permanent=not error.again) from None
                log.info("image %s: %s; trying again", self._image.text, error)
                await backoff.wait(error.after)

    async def _probe(self) -> str | None:
        """Return why the registry does not answer at all; None if it does, also with a refusal."""
        host = self._image.host
        try:
            async with asyncio.timeout(PROBE_SECONDS), self._http.get(self._root, allow_redirects=False) as response:
                status = response.status
        except TimeoutError:
            return f"the registry {host} sent nothing for {PROBE_SECONDS:g} s"
        except aiohttp.ClientError as error:
            return f"the registry {host} does not answer properly: {connection_failure_text(error)}"
        return f"the registry {host} answers {status}" if status >= 500 else None

    # one request

    @asynccontextmanager
    async def _get(self, url: str, headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the answer with status 200 or 206. Raises _Failed, also for a connection that fails while the body is
        read."""
        host = self._image.host
        try:
            response = await self._answer(url, headers)
            async with response:
                if response.status not in (200, 206):
                    raise self._refusal(response, url)
                yield response
        except TimeoutError:
            raise _Failed(f"the registry {host} sent nothing for {self._timeout.sock_read:g} s", again=True) from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise _Failed(
                f"the certificate of {error.host} cannot be verified ({connection_failure_text(error)}): if the site has a CA "
                "of its own, name the CA's file in REQUESTS_CA_BUNDLE or SSL_CERT_FILE in the job's environment",
                again=False,
            ) from None
        except aiohttp.ClientError as error:
            raise _Failed(
                f"the registry {host} does not answer properly: {connection_failure_text(error)}", again=True
            ) from None

    async def _answer(self, url: str, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Follow redirects and sign in on demand. The credentials are for the registry's own host only."""
        own, signed_in = URL(url).origin(), False
        for _ in range(_MOST_REDIRECTS + 1):
            used = self._authorization
            extra = {"Authorization": used} if used and URL(url).origin() == own else {}
            response = await self._http.get(URL(url, encoded=True), headers={**headers, **extra}, allow_redirects=False)
            if response.status == 401 and not signed_in and URL(url).origin() == own:
                challenge = response.headers.getall("WWW-Authenticate", [])
                response.release()
                signed_in = True
                async with self._signing_in:
                    if self._authorization == used:
                        self._authorization = await self._sign_in(challenge)
                continue
            location = response.headers.get("Location")
            if response.status not in (301, 302, 303, 307, 308) or location is None:
                return response
            response.release()
            url = self._checked(location, url)
        raise _Failed(f"the registry {self._image.host} redirects without end", again=False)

    async def _sign_in(self, challenges: Sequence[str]) -> str:
        """Return the value of the header Authorization."""
        host = self._image.host
        try:
            basic = basic_credentials(self._file, host)
        except UnusableCredentials as error:
            raise _Failed(str(error), again=False) from None
        for challenge in challenges:
            scheme, _, rest = challenge.partition(" ")
            if scheme.lower() == "bearer":
                return await self._token(dict(_CHALLENGE.findall(rest)), basic)
        if basic is None:
            raise self._no_access(with_credentials=False)
        return f"Basic {basic}"

    async def _token(self, challenge: Mapping[str, str], basic: str | None) -> str:
        realm = self._checked(challenge.get("realm", ""))
        scope = challenge.get("scope") or f"repository:{self._image.repository}:pull"
        query = {"scope": scope, **({"service": challenge["service"]} if "service" in challenge else {})}
        headers = {"Authorization": f"Basic {basic}"} if basic else {}
        async with self._http.get(URL(realm).update_query(query), headers=headers, allow_redirects=False) as response:
            if response.status in (400, 401, 403):
                raise self._no_access(with_credentials=basic is not None)
            if response.status != 200:
                raise self._refusal(response, realm)
            data = await _read_all(response, _MOST_TOKEN)
        try:
            answer = json.loads(data)
            token = answer.get("token") or answer.get("access_token")
        except (ValueError, AttributeError):
            token = None
        if not isinstance(token, str) or not token.isprintable():
            raise _Failed(f"the registry {self._image.host} gave no token", again=True)
        return f"Bearer {token}"

    def _checked(self, named: str, base: str = "") -> str:
        """Return the whole address that the registry names. Refuse to leave TLS, unless the user allows plain HTTP for the
        host."""
        try:
            url = urljoin(base, named)
            parsed = URL(url)
            plain = parsed.scheme == "http" and self._plain_http(parsed.authority)
        except ValueError:
            parsed = URL("")
        if not parsed.host:  # the address is not in the text: it may have a key to a file
            raise _Failed(f"the registry {self._image.host} names an address that is not valid", again=False)
        if parsed.scheme != "https" and not plain:
            raise _Failed(
                f"the registry {self._image.host} leads to a server without TLS, {parsed.host}: add the server to "
                "`sandbox.images.insecureRegistries` if you trust it",
                again=False,
            )
        return url

    def _plain_http(self, authority: str) -> bool:
        host = authority.rpartition(":")[0] if re.search(r":\d+$", authority) else authority
        return host in ("localhost", "127.0.0.1", "[::1]") or authority in self._insecure or host in self._insecure

    def _refusal(self, response: aiohttp.ClientResponse, asked: str) -> _Failed:
        """`asked`: the address before all redirects."""
        image, status = self._image, response.status
        if status in (401, 403):
            return self._no_access(with_credentials=self._authorization is not None and self._file is not None)
        if status == 404 and (digest := asked.removeprefix(f"{self._base}/blobs/")) != asked:
            return _Failed(
                f"the registry {image.host} lacks layer {digest} of it: push the image again, also its foreign layers if it "
                "has some",
                again=False,
            )
        if status == 404:
            named = f"@{image.digest}" if image.digest else f":{image.tag}"
            return _Failed(
                f"the registry {image.host} has no {image.repository}{named}: check the name, or push the image",
                again=False,
            )
        after = response.headers.get("Retry-After", "")
        return _Failed(
            f"the registry {image.host} answers {status}" + (" (too many requests)" if status == 429 else ""),
            again=status == 429 or status >= 500,
            after=min(30.0, float(after)) if after.isdigit() and len(after) < 6 else 0.0,
        )

    def _no_access(self, *, with_credentials: bool) -> _Failed:
        host, repository = self._image.host, self._image.repository
        if with_credentials:
            why = f"the registry {host} refuses access to {repository} with the credentials of {self._file}"
        elif self._file is None:
            why = (
                f"the registry {host} refuses access to {repository} without credentials: check the name, or name a file "
                "with credentials in `sandbox.images.credentialsFile`"
            )
        else:
            why = (
                f"the registry {host} refuses access to {repository}, and {self._file} has no entry for {host}: add one"
            )
        return _Failed(why, again=False)


async def _read_all(response: aiohttp.ClientResponse, most: int) -> bytes:
    data = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK):
        data += chunk
        if len(data) > most:
            raise _Failed(f"the registry sent more than {most >> 20} MiB", again=False)
    return bytes(data)


def _continues(response: aiohttp.ClientResponse, have: int) -> bool:
    started = _RANGE.match(response.headers.get("Content-Range", ""))
    return response.status == 206 and started is not None and int(started[1]) == have


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _open_part(path: Path, size: int) -> tuple[BinaryIO, int, _Hash]:
    """Open the start of a blob to write on; return its length and the sum so far. A file that is too long starts again."""
    file, hashed = open(path, "a+b"), hashlib.sha256()  # noqa: SIM115
    if _size(path) >= size:
        file.truncate(0)
    file.seek(0)
    while data := file.read(_CHUNK):
        hashed.update(data)
    return file, file.tell(), hashed
