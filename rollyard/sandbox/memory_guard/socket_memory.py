"""Memory of the sockets in one network namespace, as sock_diag(7) shows it: also of sockets that no process has open,
because they wait to be accepted or are on their way in a message."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_INODE = struct.Struct("=I")
_MEMORY = struct.Struct("=9I")
"""Bytes received, limit, bytes sent, limit, reserved, queued to send, options, backlog, number of drops."""
_BY_FAMILY, _ERROR, _DONE = 20, 2, 3
_DUMP = 0x301
SOCKET_BYTES = 2048
"""Memory of a socket with empty buffers: the socket, its file and its inode."""
_REPLY_BYTES = 1 << 16


def _inet(family: int, protocol: int) -> bytes:
    return struct.pack("=BBBBI48x", family, protocol, 1 << 6, 0, 0xFFFFFFFF)


# For each kind of socket: the request, the length of a reply's fixed part, the place of the inode in it, and the number of
# the attribute with the memory. From the kernel's unix_diag.h, inet_diag.h and netlink_diag.h.
_KINDS = (
    (struct.pack("=BBHIII8x", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, 0x20), 16, 4, 5),
    *(
        (_inet(family, protocol), 72, 68, 7)
        for family in (socket.AF_INET, socket.AF_INET6)
        for protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP)
    ),
    (struct.pack("=BBHII8x", socket.AF_NETLINK, 0xFF, 0, 0, 1), 28, 16, 0),
)


def socket_bytes(diag: socket.socket) -> Mapping[int, int]:
    """Return the bytes of each socket, by inode. Sockets without an inode, which no process has ever had open, are summed
    up under 0. Raises OSError if the kernel cannot tell."""
    found: dict[int, int] = {}
    for request, fixed, inode_at, attribute in _KINDS:
        for inode, size in _dumped(diag, request, fixed, inode_at, attribute):
            found[inode] = found.get(inode, 0) + size if inode == 0 else size
    return found


def _dumped(
    diag: socket.socket, request: bytes, fixed: int, inode_at: int, attribute: int
) -> Iterator[tuple[int, int]]:
    diag.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 0, 0) + request)
    while True:
        reply = diag.recv(_REPLY_BYTES)
        at = 0
        while at < len(reply):
            length, kind, *_ = _HEADER.unpack_from(reply, at)
            if kind in (_DONE, _ERROR):  # an error: the kernel lacks this kind of socket
                return
            start, end = at + _HEADER.size, at + length
            (inode,) = _INODE.unpack_from(reply, start + inode_at)
            yield inode, SOCKET_BYTES + _memory(reply, start + fixed, end, attribute)
            at += (length + 3) & ~3


def _memory(reply: bytes, at: int, end: int, wanted: int) -> int:
    while at + _ATTRIBUTE.size <= end:
        length, attribute = _ATTRIBUTE.unpack_from(reply, at)
        if attribute == wanted and length >= _ATTRIBUTE.size + _MEMORY.size:
            numbers: tuple[int, ...] = _MEMORY.unpack_from(reply, at + _ATTRIBUTE.size)
            received, _, sent, _, reserved, queued, _, backlog, _ = numbers
            return received + max(sent, queued) + reserved + backlog
        at += max(_ATTRIBUTE.size, (length + 3) & ~3)
    return 0
