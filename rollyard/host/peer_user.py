"""User of the process at the other end of a loopback connection, from the kernel's table of TCP connections."""

from __future__ import annotations

import asyncio
import ipaddress
import sys
from collections.abc import Sequence
from pathlib import Path

_UID_FIELD, _INODE_FIELD = 7, 9
_TABLES = Path("/proc/net")


class PeerUsers:
    """Users of the peers of TCP connections within this machine.

    The kernel needs 10 ms for its tables. So all questions that wait for a reading share the next one.
    """

    def __init__(self) -> None:
        self._present: asyncio.Task[tuple[str, str]] | None = None
        self._next: asyncio.Task[tuple[str, str]] | None = None

    async def uid(self, transport: asyncio.BaseTransport) -> int | None:
        """Return the numeric user id of the peer; None if it is unknown.

        The tables tcp and tcp6 have a row for each end of a connection, with the user of its socket (proc_net_tcp(5)). An
        end that its process has closed has user 0 and inode 0 there, so its user is unknown.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._read_after(self._present))
        return _uid_in(await asyncio.shield(self._next), transport)

    async def _read_after(self, present: asyncio.Task[tuple[str, str]] | None) -> tuple[str, str]:
        if present is not None:  # its rows may be older than a connection that asks now
            await asyncio.wait({present})
        self._present, self._next = self._next, None
        return await asyncio.to_thread(_read_tables)


def _read_tables() -> tuple[str, str]:
    return (_TABLES / "tcp").read_text(), (_TABLES / "tcp6").read_text() if (_TABLES / "tcp6").exists() else ""


def _uid_in(tables: tuple[str, str], transport: asyncio.BaseTransport) -> int | None:
    here, there = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    if here is None or there is None:
        return None
    ends = [there[:2], here[:2]]  # as in the row of the peer's end
    tcp, tcp6 = tables
    if ":" in there[0]:
        return _uid(tcp6, ends)
    # A socket for IPv6 may connect to an IPv4 address, as ::ffff:127.0.0.1. Its end is in the other table.
    rows = [(tcp, ends), (tcp6, [(f"::ffff:{host}", port) for host, port in ends])]
    return next((uid for table, ends in rows if (uid := _uid(table, ends)) is not None), None)


def _uid(table: str, ends: Sequence[tuple[str, int]]) -> int | None:
    """Search the table as one text: to split each of its rows for each connection would take too long."""
    row = f" {' '.join(_end(*end) for end in ends)} "
    at = table.find(row)
    while at >= 0:
        fields = table[table.rfind("\n", 0, at) + 1 :].partition("\n")[0].split()
        if fields[_INODE_FIELD] != "0":
            return int(fields[_UID_FIELD])
        at = table.find(row, at + 1)
    return None


def _end(host: str, port: int) -> str:
    """Write an end as the tables do: the address in words of 32 bits in this machine's byte order, then the port."""
    packed = ipaddress.ip_address(host).packed
    words = [packed[i : i + 4] for i in range(0, len(packed), 4)]
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"
