"""Registries with a certificate of a site's own CA."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollyard.core.errors import ImageUnavailable
from rollyard.images.cache import ImageCache
from rollyard.images.site_certificates import BUNDLES, tls_context
from rollyard.kinds.values.image_reference import parse_image
from rollyard.trust.ca import Authority
from tests.support.image_files import place
from tests.support.image_registry import Pusher, running_registry

ADDRESS = "127.0.0.2"
"""Unlike localhost, it is asked by HTTPS."""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in BUNDLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Return the name of an image whose registry speaks TLS, and the file of the site's CA."""
    folder = tmp_path_factory.mktemp("site")
    authority = Authority.open(folder)
    (folder / "site-ca.pem").write_text(f"# the site's authority, é\n{authority.ca_pem}")
    with running_registry(folder) as host:
        Pusher(host).image("site/one", "v1")
    with running_registry(folder, address=ADDRESS, certificate=authority.server_certificate([ADDRESS])) as host:
        yield f"docker://{host}/site/one:v1", folder / "site-ca.pem"


@pytest.mark.parametrize("variable", BUNDLES)
async def test_the_cas_that_variables_name_are_trusted(
    site: tuple[str, Path], cache: ImageCache, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    name, bundle = site
    monkeypatch.setenv(variable, os.fspath(bundle))
    with await cache.get(parse_image(name)) as image:
        assert place(image, "etc/name").exists()


async def test_an_unknown_ca_is_named_with_what_one_can_do(
    site: tuple[str, Path], cache: ImageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failure() -> str:
        with pytest.raises(ImageUnavailable) as caught:
            await cache.get(parse_image(site[0]))
        assert caught.value.permanent
        return caught.value.why

    assert f"the certificate of {ADDRESS} cannot be verified" in await failure()
    assert "name the CA's file in REQUESTS_CA_BUNDLE or SSL_CERT_FILE in the job's environment" in await failure()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere")
    assert "$REQUESTS_CA_BUNDLE names /nowhere, which cannot be read" in await failure()


def test_a_file_without_a_certificate_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    monkeypatch.setenv("SSL_CERT_FILE", os.fspath(tmp_path / "empty"))
    with pytest.raises(ValueError, match=r"\$CURL_CA_BUNDLE name no file with a certificate"):
        tls_context(machine=[])
