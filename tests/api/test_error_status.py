"""Answers of the outermost boundary of a request to errors inside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rollyard.api.error_status import Handler, errors_as_status


@asynccontextmanager
async def asked(handler: Handler) -> AsyncIterator[aiohttp.ClientResponse]:
    app = web.Application(middlewares=[errors_as_status])
    app.router.add_get("/", handler)
    async with TestServer(app) as server, aiohttp.ClientSession() as http, http.get(server.make_url("/")) as response:
        yield response


async def test_a_caller_that_leaves_in_the_middle_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    async def left(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        assert request.transport is not None
        request.transport.close()  # as it is found when the caller has gone and nobody has told the handler yet
        await response.write(b"more")
        return response

    async with asked(left) as response:
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    assert "failed" not in caplog.text


async def test_another_connection_that_breaks_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_: web.Request) -> web.StreamResponse:
        raise ConnectionResetError("of an engine")

    async with asked(broken) as response:
        assert response.status == 500
    assert "GET / failed" in caplog.text
