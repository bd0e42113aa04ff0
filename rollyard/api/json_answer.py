"""JSON responses as Kubernetes sends them: without a charset, because some clients compare the whole header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web
from pydantic_core import to_json


def json_answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=to_json(body), status=status, headers=headers, content_type="application/json")
