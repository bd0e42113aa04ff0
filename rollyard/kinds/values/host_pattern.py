"""Patterns of hosts that sandboxes may reach: `pypi.org`, `*.example.org`, `mirror:8080`, `10.0.0.7`, `[fd00::7]:8080`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

DEFAULT_PORTS = (80, 443)
"""Ports of a pattern without a port."""
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*\.?", re.ASCII)
_WITH_PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(:(?P<port>\d{1,5}))?")
_FORMS = "write a name such as pypi.org or *.example.org, or an address, with or without a port, as in mirror:8080"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class HostPattern:
    """One entry of `allowedHosts`. `host`: in lower case. `*.example.org` means each name below example.org, not
    example.org itself."""

    host: str
    ports: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> HostPattern:
        """Raises ValueError with the forms that exist."""
        found = _WITH_PORT.fullmatch(text)
        port = found["port"] if found else None
        if found is None or (port is not None and not 0 < int(port) < 65536):
            raise ValueError(f"{text!r} is not a host: {_FORMS}")
        host = found["host"].lower().strip("[]").rstrip(".")
        if not _NAME.fullmatch(host) and address_of(host) is None:
            raise ValueError(f"{text!r} is not a host: {_FORMS}")
        return cls(host, DEFAULT_PORTS if port is None else (int(port),))

    @property
    def wildcard(self) -> bool:
        return self.host.startswith("*.")

    def matches(self, host: str, port: int) -> bool:
        if port not in self.ports:
            return False
        host = host.lower().rstrip(".")
        address = address_of(self.host)
        if address is not None:
            return address_of(host) == address
        if self.wildcard:
            return host.endswith(self.host[1:]) and _NAME.fullmatch(host) is not None
        return host == self.host

    def may_be_at(self, address: Address) -> bool:
        """Whether a connection for this pattern may go to `address`, which the host's name has in DNS.

        A name must not lead to the node itself or to the metadata service of a cloud, which has a link-local address.
        Other people may own the names below a wildcard, so these names must not lead into the site's private networks.
        """
        if address_of(self.host) is not None:
            return True
        if isinstance(address, ipaddress.IPv6Address):
            address = address.ipv4_mapped or address.sixtofour or address
        if address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified:
            return False
        return address.is_global or not self.wildcard


def address_of(host: str) -> Address | None:
    """Return the address that `host` is, or None if `host` is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
