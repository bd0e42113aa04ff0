"""Name or address at which other machines reach this machine."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path

from rollyard.core.errors import BadRequest

SIOCGIFADDR = 0x8915
"""<linux/sockios.h>: the request for the IPv4 address of an interface."""
ANY = ("0.0.0.0", "::", "*")


def advertised(address_or_interface: str | None, listen: str) -> str:
    """Return `address_or_interface`; for an interface such as ib0, return the interface's address on this machine.

    `listen`: address on which the server listens, without a port. For None, return `listen`, or this machine's name if
    `listen` means all addresses. Raises BadRequest if the interface has no IPv4 address.
    """
    if address_or_interface is None:
        return listen if listen not in ANY else os.uname().nodename
    return (
        _interface_address(address_or_interface)
        if Path("/sys/class/net", address_or_interface).exists() and address_or_interface not in (".", "..")
        else address_or_interface
    )


def _interface_address(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            have = ", ".join(name for _, name in socket.if_nameindex())
            raise BadRequest(
                f"--advertise {interface}: this machine has no IPv4 address on this interface; name an address or one of {have}"
            ) from None
    return socket.inet_ntoa(answer[20:24])
