"""User of the process at the other end of a loopback connection, from the kernel's table of TCP connections."""

from __future__ import annotations

import asyncio
import ipaddress
import sys
from collections.abc import Sequence
from pathlib import Path

_UID_FIELD, _INODE_FIELD = 7, 9


def peer_uid(transport: asyncio.BaseTransport, tables: Path = Path("/proc/net")) -> int | None:
    """Return the numeric user id of the peer of a TCP connection within this machine; None if it is unknown.

    The tables tcp and tcp6 have a row for each end of a connection, with the user of its socket (proc_net_tcp(5)). An end
    that its process has closed has user 0 and inode 0 there, so its user is unknown. Blocks.
    """
    here, there = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    if here is None or there is None:
        return None
    ends = [there[:2], here[:2]]  # as in the row of the peer's end
    if ":" in there[0]:
        return _uid(tables / "tcp6", ends)
    # A socket for IPv6 may connect to an IPv4 address, as ::ffff:127.0.0.1. Its end is in the other table.
    rows = [(tables / "tcp", ends), (tables / "tcp6", [(f"::ffff:{host}", port) for host, port in ends])]
    return next((uid for table, ends in rows if (uid := _uid(table, ends)) is not None), None)


def _uid(table: Path, ends: Sequence[tuple[str, int]]) -> int | None:
    row = [_end(*end) for end in ends]
    found = (fields for line in table.read_text().splitlines()[1:] if (fields := line.split())[1:3] == row)
    return next((int(fields[_UID_FIELD]) for fields in found if fields[_INODE_FIELD] != "0"), None)


def _end(host: str, port: int) -> str:
    """Write an end as the tables do: the address in words of 32 bits in this machine's byte order, then the port."""
    packed = ipaddress.ip_address(host).packed
    words = [packed[i : i + 4] for i in range(0, len(packed), 4)]
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"
