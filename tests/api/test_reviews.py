"""Questions of kubectl about its own rights, in JSON and in protobuf."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.outside_api import Api, Serve

ACCESS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
PROTOBUF = {"Content-Type": "application/vnd.kubernetes.protobuf"}


def field(number: int, content: bytes | str) -> bytes:
    """A field with a length, shorter than 128 bytes, of a protobuf message."""
    data = content.encode() if isinstance(content, str) else content
    return bytes([number << 3 | 2, len(data)]) + data


def envelope(attributes: bytes, number: int = 1) -> bytes:
    """A SelfSubjectAccessReview as kubectl sends it."""
    kind = field(1, field(1, "authorization.k8s.io/v1") + field(2, "SelfSubjectAccessReview"))
    review = field(1, b"") + field(2, field(number, attributes))
    return b"k8s\0" + kind + field(2, review) + field(3, "") + field(4, "")


async def ask(api: Api, body: Any) -> tuple[int, dict[str, Any]]:
    given = {"data": body, "headers": PROTOBUF} if isinstance(body, bytes) else {"json": body}
    async with api.http.post(api.url + ACCESS, **given) as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize(
    ("verb", "resource", "subresource", "allowed"),
    [
        ("create", "rolloutpools", "", True),
        ("patch", "rolloutpools", "scale", True),
        ("delete", "allocations", "", True),
        ("create", "allocations", "", False),
        ("get", "nothings", "", False),
        ("*", "*", "", False),
    ],
)
async def test_kubectl_hears_what_its_token_may_do(
    serving: Serve, verb: str, resource: str, subresource: str, allowed: bool
) -> None:
    names = {2: verb, 3: "rollyard.dev", 5: resource, 6: subresource}
    attributes = {"verb": verb, "group": "rollyard.dev", "resource": resource, "subresource": subresource}
    async with serving() as api:
        for body in (
            envelope(b"".join(field(number, text) for number, text in names.items())),
            {"spec": {"resourceAttributes": attributes}},
        ):
            status, told = await ask(api, body)
            assert (status, told["status"]["allowed"]) == (201, allowed), told
        status, told = await ask(api, envelope(field(1, "/healthz") + field(2, "get"), 2))
        assert (status, told["status"]["allowed"], told["spec"]) == (
            201,
            True,
            {"nonResourceAttributes": {"path": "/healthz", "verb": "get"}},
        )


@pytest.mark.parametrize("data", [b"", b"k8s", b"json", b"k8s\0\xff", b"k8s\0" + b"\x80" * 40, b"k8s\0\x0d\0\0\0\0"])
async def test_protobuf_that_cannot_be_read_is_refused(serving: Serve, data: bytes) -> None:
    async with serving() as api:
        status, told = await ask(api, data)
        assert (status, "send JSON" in told["message"]) == (400, True)
