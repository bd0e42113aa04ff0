"""A site's proxies and CA certificates in a RUN, and that nothing of them stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.image_builds.site_network import PROXIES
from rollyard.images.site_certificates import certificates
from tests.image_builds.conftest import Builder


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXIES, "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


async def test_a_run_has_the_sites_certificates_and_proxies_and_the_image_has_not(
    builder: Builder, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = builder.folder / "site.pem"
    bundle.write_text("site certificate\n")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    monkeypatch.setenv("https_proxy", "http://proxy.example:1")
    text = (
        "FROM ../base\nRUN head -n 1 $SSL_CERT_FILE $PIP_CERT > /seen; cat $APT_CONFIG >> /seen; "
        "echo $https_proxy $HTTP_PROXY >> /seen\n"
    )
    arguments = {"HTTP_PROXY": "http://given.example:2"}
    root = await builder.root(text, runtime=runtime, arguments=arguments)
    seen = (root / "seen").read_text()
    assert seen.count("site certificate") == 2
    assert 'Acquire::https::CAInfo "/dev/rollyard-ca.pem";' in seen
    assert "http://proxy.example:1 http://given.example:2" in seen
    assert not any("has no effect" in line for line in builder.said)
    assert list((root / "dev").iterdir()) == []
    assert "example" not in (root / ".rollyard-image.json").read_text()
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.delenv("https_proxy")
    await builder.build(text, runtime=runtime)
    assert builder.done == [], "neither is part of the cache's keys"


def test_certificates_are_added_to_those_of_the_machine(tmp_path: Path) -> None:
    site, machine = tmp_path / "site", tmp_path / "machine"
    site.write_text("site\n")
    machine.write_text("machine\n")
    given = {"SSL_CERT_FILE": str(site), "REQUESTS_CA_BUNDLE": str(site)}
    assert certificates(given, [str(tmp_path / "none"), str(machine)]) == "site\n\nmachine\n"
    assert certificates({}, [str(machine)]) is None
    with pytest.raises(ValueError, match=r"\$SSL_CERT_FILE names /nowhere, which cannot be read"):
        certificates({"SSL_CERT_FILE": "/nowhere"})
