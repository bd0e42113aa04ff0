"""Private registries: basic and token authentication, the file of credentials, and what never appears in an error."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from rollyard.core.errors import ImageUnavailable
from rollyard.images.cache import ImageCache
from rollyard.images.settings import CacheSettings
from rollyard.kinds.values.image_reference import parse_image
from tests.support.image_files import names, place
from tests.support.image_registry import Front, Pusher, gz, running_registry, tar

SECRET = "s3cr3t-word"
BASIC = base64.b64encode(f"me:{SECRET}".encode()).decode()
# bcrypt of SECRET
HTPASSWD = "me:$2b$05$abcdefghijklmnopqrstuu1gnH1w3qtZX3U1O7JEI3HUJtwELxlju\n"


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pusher]:
    with running_registry(tmp_path_factory.mktemp("private"), HTPASSWD) as host:
        pusher = Pusher(host, {"Authorization": f"Basic {BASIC}"})
        pusher.image("team/one", "v1")
        yield pusher


def _file(folder: Path, entries: object, mode: int = 0o600) -> str:
    path = folder / "auth.json"
    path.write_text(json.dumps(entries))
    path.chmod(mode)
    return str(path)


async def _failure(open_folder: Path, file: str | None, image: str) -> str:
    cache = ImageCache(open_folder / "cache", CacheSettings(credentials_file=file))
    with pytest.raises(ImageUnavailable) as caught:
        await cache.get(parse_image(image))
    assert SECRET not in str(caught.value)
    assert BASIC not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("form", ["auth", "password", "url"])
async def test_basic_authentication(
    private: Pusher, open_folder: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    entry = {"username": "me", "password": SECRET} if form == "password" else {"auth": BASIC}
    file = _file(open_folder, {"auths": {f"https://{private.host}" if form == "url" else private.host: entry}})
    cache = ImageCache(open_folder / "cache", CacheSettings(credentials_file=file))
    with await cache.get(parse_image(f"docker://{private.host}/team/one:v1")) as image:
        assert place(image, "etc/name").exists()
    assert SECRET not in caplog.text


async def test_what_is_wrong_with_the_credentials_is_said(private: Pusher, open_folder: Path) -> None:
    image = f"docker://{private.host}/team/one:v1"
    assert "without credentials: check the name, or name a file" in await _failure(open_folder, None, image)
    nothing = _file(open_folder, {"auths": {}})
    assert f"{nothing} has no entry for {private.host}: add one" in await _failure(open_folder, nothing, image)
    good = {"auths": {private.host: {"auth": BASIC}}}
    assert "run chmod 600" in await _failure(open_folder, _file(open_folder, good, 0o640), image)
    wrong = {"auths": {private.host: {"auth": base64.b64encode(b"me:no").decode()}}}
    assert "refuses access to team/one with the credentials of" in await _failure(
        open_folder, _file(open_folder, wrong), image
    )
    helper = {"auths": {private.host: {}}, "credsStore": "x"}
    assert "helper program" in await _failure(open_folder, _file(open_folder, helper), image)
    assert "no JSON" not in await _failure(open_folder, _file(open_folder, []), image)
    (open_folder / "auth.json").write_text(SECRET)
    assert "is no JSON file" in await _failure(open_folder, str(open_folder / "auth.json"), image)
    assert "No such file" in await _failure(open_folder, str(open_folder / "nowhere"), image)


class TokenRegistry:
    """Asks for a token before a registry without authentication: the challenge, and the server of tokens."""

    def __init__(self, registry: str) -> None:
        self.front = Front(registry)
        self.tokens: list[tuple[str | None, str | None]] = []
        self.uses = 1000
        """Requests after which the first token has expired."""
        self._left = 0

    async def __aenter__(self) -> TokenRegistry:
        handle = self.front._handle

        async def guarded(request: web.Request) -> web.StreamResponse:
            if request.path == "/token":
                self.tokens.append((request.headers.get("Authorization"), request.query.get("scope")))
                if request.headers.get("Authorization") not in (None, f"Basic {BASIC}"):
                    return web.Response(status=401)
                self._left = self.uses if len(self.tokens) == 1 else 1000
                return web.json_response({"token": f"abc{len(self.tokens)}"})
            self._left -= 1
            if self._left < 0 or request.headers.get("Authorization") != f"Bearer abc{len(self.tokens)}":
                realm = f'Bearer realm="http://{self.front.host}/token",service="us",scope="repository:open/one:pull"'
                return web.Response(status=401, headers={"WWW-Authenticate": realm})
            return await handle(request)

        self.front._handle = guarded  # type: ignore[method-assign]
        await self.front.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.front.__aexit__()


@pytest_asyncio.fixture
async def tokens(registry: Pusher) -> AsyncIterator[TokenRegistry]:
    registry.image("open/one", "v1")
    async with TokenRegistry(registry.host) as started:
        yield started


@pytest.mark.parametrize("private", [False, True], ids=["anonymous", "private"])
async def test_token_authentication(tokens: TokenRegistry, open_folder: Path, private: bool) -> None:
    file = _file(open_folder, {"auths": {tokens.front.host: {"auth": BASIC}}}) if private else None
    cache = ImageCache(open_folder / "cache", CacheSettings(credentials_file=file))
    with await cache.get(parse_image(f"docker://{tokens.front.host}/open/one:v1")) as image:
        assert place(image, "etc/name").exists()
    assert set(tokens.tokens) == {(f"Basic {BASIC}" if private else None, "repository:open/one:pull")}
    assert os.listdir(open_folder / "cache/filling") == []


async def test_a_token_that_expires_during_a_pull_is_replaced(tokens: TokenRegistry, open_folder: Path) -> None:
    tokens.uses = 3
    layers = [gz(tar((f"f{number}", b"1"))) for number in range(6)]
    Pusher(tokens.front.registry).image("open/one", "many", layers)
    cache = ImageCache(open_folder / "cache")
    with await cache.get(parse_image(f"docker://{tokens.front.host}/open/one:many")) as image:
        assert len(names(image)) == 6
    assert len(tokens.tokens) == 2


async def test_a_token_does_not_follow_a_redirect_to_another_host(
    tokens: TokenRegistry, front: Front, open_folder: Path
) -> None:
    tokens.front.faults.append(("blobs", f"to {front.host}", 1000))
    with await ImageCache(open_folder / "cache").get(parse_image(f"docker://{tokens.front.host}/open/one:v1")) as image:
        assert place(image, "etc/name").exists()
    assert front.count("blobs") == 2
    assert set(front.authorizations) == {None}


async def test_credentials_do_not_follow_a_redirect_to_another_host(private: Pusher, open_folder: Path) -> None:
    """Registries redirect to the storage of a cloud, which would otherwise see the password."""
    async with Front(private.host) as front, Front("127.0.0.1:1") as storage:
        front.faults.append(("blobs", f"to {storage.host}", 1000))
        storage.faults.append(("blobs", "503", 1000))
        image = f"docker://{front.host}/team/one:v1"
        file = _file(open_folder, {"auths": {front.host: {"auth": BASIC}}})
        assert "answers 503" in await _failure(open_folder, file, image)
        assert f"Basic {BASIC}" in front.authorizations
        assert set(storage.authorizations) == {None}
        front.faults[0] = ("blobs", "to registry.example:80", 1000)
        assert "leads to a server without TLS, registry.example: add" in await _failure(open_folder, file, image)
