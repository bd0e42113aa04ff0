"""Patterns of allowed hosts: which texts are patterns, which hosts they match, and where a matching name may lead."""

from __future__ import annotations

import ipaddress

import pytest

from rollyard.kinds.sandbox_template import SandboxTemplate
from rollyard.kinds.values.host_pattern import HostPattern


@pytest.mark.parametrize(
    ("text", "host", "port", "matches"),
    [
        ("pypi.org", "pypi.org", 443, True),
        ("pypi.org", "PyPI.org.", 80, True),
        ("pypi.org", "pypi.org", 22, False),
        ("pypi.org", "evil-pypi.org", 443, False),
        ("pypi.org", "pypi.org.evil.example", 443, False),
        ("*.example.org", "a.example.org", 443, True),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "evilexample.org", 443, False),
        ("Mirror:8080", "mirror", 8080, True),
        ("mirror:8080", "mirror", 80, False),
        ("10.0.0.7", "10.0.0.7", 80, True),
        ("[fd00::7]:8080", "fd00:0::7", 8080, True),
        ("fd00.example", "fd00::7", 80, False),
    ],
)
def test_matches(text: str, host: str, port: int, matches: bool) -> None:
    assert HostPattern.parse(text).matches(host, port) is matches


@pytest.mark.parametrize(
    "text", ["", "*", "*.", "http://pypi.org", "pypi.org/simple", "a b", "host:0", "host:65536", "a..b", "fd00::7"]
)
def test_what_is_no_host_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="write a name such as"):
        SandboxTemplate.model_validate({"allowedHosts": [text]})


@pytest.mark.parametrize(
    ("text", "address", "may"),
    [
        ("pypi.org", "151.101.0.223", True),
        ("mirror", "10.0.0.7", True),
        ("*.example.org", "10.0.0.7", False),
        ("*.example.org", "151.101.0.223", True),
        ("mirror", "127.0.0.1", False),
        ("mirror", "::1", False),
        ("mirror", "::ffff:127.0.0.1", False),
        ("mirror", "169.254.169.254", False),
        ("mirror", "0.0.0.0", False),
        ("127.0.0.1:8080", "127.0.0.1", True),
    ],
)
def test_addresses_of_a_name(text: str, address: str, may: bool) -> None:
    assert HostPattern.parse(text).may_be_at(ipaddress.ip_address(address)) is may


def test_allowed_hosts_and_the_whole_network_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="leave out"):
        SandboxTemplate.model_validate({"allowedHosts": ["pypi.org"], "hostNetwork": True})
