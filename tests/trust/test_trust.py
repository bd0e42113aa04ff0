"""Certificates, tokens and the files they lie in, with a real TLS handshake."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from pathlib import Path

import pytest

from rollyard.core.errors import Conflict, Invalid, Unauthorized, Unavailable
from rollyard.trust.admin_kubeconfig import write_kubeconfig
from rollyard.trust.bearer_tokens import Claims, Role, TokenSigner
from rollyard.trust.ca import Authority
from rollyard.trust.csr import new_key_and_csr
from rollyard.trust.endpoint_file import write_endpoint
from rollyard.trust.tls_contexts import server_ssl_context
from rollyard.wire.files import EndpointFile


def shake_hands(pem: Path, ca_pem: str, host: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        try:
            server_ssl_context(pem).wrap_socket(connection, server_side=True).close()
        except (ssl.SSLError, ConnectionError):
            connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with socket.create_connection(listener.getsockname()) as raw:
            ssl.create_default_context(cadata=ca_pem).wrap_socket(raw, server_hostname=host).close()
    finally:
        thread.join(60)
        listener.close()


def test_the_server_certificate_is_trusted_for_its_hosts_alone(tmp_path: Path) -> None:
    authority = Authority.open(tmp_path / "keys")
    pem = authority.server_certificate(["127.0.0.1", "localhost"])
    shake_hands(pem, authority.ca_pem, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(pem, authority.ca_pem, "elsewhere")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(pem, Authority.open(tmp_path / "other").ca_pem, "127.0.0.1")


def test_the_authority_stays_and_certificates_follow_the_hosts(tmp_path: Path) -> None:
    first = Authority.open(tmp_path)
    before = first.server_certificate(["a"]).read_bytes()
    again = Authority.open(tmp_path)
    assert again.ca_pem == first.ca_pem
    assert again.server_certificate(["a"]).read_bytes() == before
    assert again.server_certificate(["b"]).read_bytes() != before


def test_a_proxy_gets_the_names_the_server_gives_it(tmp_path: Path) -> None:
    authority = Authority.open(tmp_path)
    key, csr = new_key_and_csr("x" * 100)
    pem = tmp_path / "proxy.pem"
    pem.write_bytes(key + authority.sign_csr(csr.decode(), ["127.0.0.1"]).encode())
    shake_hands(pem, authority.ca_pem, "127.0.0.1")
    with pytest.raises(Invalid):
        authority.sign_csr("nonsense", ["127.0.0.1"])


def test_a_certificate_of_another_authority_is_replaced(tmp_path: Path) -> None:
    """Every authority has the same name, so the name does not tell whose certificate it is."""
    Authority.open(tmp_path).server_certificate(["127.0.0.1"])
    (tmp_path / "ca.pem").unlink()
    renewed = Authority.open(tmp_path)
    shake_hands(renewed.server_certificate(["127.0.0.1"]), renewed.ca_pem, "127.0.0.1")
    (tmp_path / "server.pem").write_text("torn")
    shake_hands(renewed.server_certificate(["127.0.0.1"]), renewed.ca_pem, "127.0.0.1")


def test_an_authority_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    Authority.open(tmp_path / "a")
    Authority.open(tmp_path / "b")
    key, ours = ((tmp_path / name / "ca.pem").read_text().partition("-----BEGIN CERT") for name in "ab")
    (tmp_path / "a" / "ca.pem").write_text(key[0] + ours[1] + ours[2])
    with pytest.raises(Unavailable, match="an elliptic-curve key and its certificate"):
        Authority.open(tmp_path / "a")
    (tmp_path / "b" / "ca.pem").write_text("")
    with pytest.raises(Unavailable, match="is not a key"):
        Authority.open(tmp_path / "b")


@pytest.mark.parametrize("hosts", [[], ["köln"]])
def test_a_certificate_for_nobody_is_refused(tmp_path: Path, hosts: list[str]) -> None:
    with pytest.raises(Invalid):
        Authority.open(tmp_path).server_certificate(hosts)


def test_a_request_that_was_touched_is_not_signed(tmp_path: Path) -> None:
    _, csr = new_key_and_csr("proxy")
    lines = csr.decode().splitlines()
    lines[-2] = ("A" if lines[-2][0] != "A" else "B") + lines[-2][1:]
    with pytest.raises(Invalid):
        Authority.open(tmp_path).sign_csr("\n".join(lines), ["127.0.0.1"])


def test_a_key_that_is_not_whole_signs_nothing(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"")
    with pytest.raises(Unavailable, match="at least 32 bytes"):
        TokenSigner.open(tmp_path / "key")


def test_secrets_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    os.umask(0o022)
    authority = Authority.open(tmp_path / "keys")
    TokenSigner.open(tmp_path / "keys" / "token.key")
    authority.server_certificate(["a"])
    write_kubeconfig(tmp_path / "keys" / "admin.kubeconfig", "https://a:1", authority.ca_pem, "t")
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    for file in (tmp_path / "keys").iterdir():
        assert file.stat().st_mode & 0o777 == 0o600, file


def test_a_token_tells_who_it_is_for_until_it_expires(tmp_path: Path) -> None:
    signer = TokenSigner.open(tmp_path / "key")
    token = signer.issue(Role.NODE, "uid-1", 100.0)
    assert TokenSigner.open(tmp_path / "key").verify(token, 99.0) == Claims(Role.NODE, "uid-1")
    with pytest.raises(Unauthorized, match="expired"):
        signer.verify(token, 100.0)


def test_a_token_that_was_touched_is_refused(tmp_path: Path) -> None:
    signer = TokenSigner.open(tmp_path / "key")
    token, other = signer.issue(Role.NODE, "uid-1"), TokenSigner(b"x" * 32).issue(Role.ADMIN, "admin")
    head, claims, signature = token.split(".")
    admin = signer.issue(Role.ADMIN, "admin").split(".")[1]
    for forged in ("", "x", "é", token[:-2], f"{head}.{admin}.{signature}", f"{head}.{claims}.", other):
        with pytest.raises(Unauthorized, match="not valid"):
            signer.verify(forged, 0.0)


def test_tokens_of_an_earlier_key_are_valid_for_the_overlap_also_after_a_restart(tmp_path: Path) -> None:
    signer = TokenSigner.open(tmp_path / "key")
    first = signer.issue(Role.NODE, "uid-1")
    signer.rotate(now=1000.0, overlap_seconds=60.0)
    second = signer.issue(Role.NODE, "uid-1")
    assert first != second
    assert [signer.valid(Role.NODE, "uid-1", at) for at in (1059.0, 1060.0)] == [[second, first], [second]]
    assert (signer.is_current(first), signer.is_current(second)) == (False, True)
    for opened in (signer, TokenSigner.open(tmp_path / "key")):
        assert opened.verify(first, 1059.0) == opened.verify(second, 9e9) == Claims(Role.NODE, "uid-1")
        with pytest.raises(Unauthorized, match=r"ended with a rotation .* admin.kubeconfig"):
            opened.verify(first, 1060.0)
    signer.rotate(now=2000.0, overlap_seconds=0.0)
    with pytest.raises(Unauthorized, match="not valid for this server"):
        signer.verify(first, 2000.0)
    with pytest.raises(Unauthorized, match="ended with a rotation"):
        signer.verify(second, 2000.0)


def test_a_rotation_that_is_cut_off_between_its_two_files_leaves_the_tokens_valid(tmp_path: Path) -> None:
    signer = TokenSigner.open(tmp_path / "key")
    first, key = signer.issue(Role.NODE, "uid-1"), (tmp_path / "key").read_bytes()
    signer.rotate(now=1000.0, overlap_seconds=0.0)
    (tmp_path / "key").write_bytes(key)  # as if the second file had not been written
    again = TokenSigner.open(tmp_path / "key")
    assert again.verify(first, 9e9) == Claims(Role.NODE, "uid-1")
    assert again.is_current(first)


def test_an_older_server_cannot_take_the_endpoint_file_back(tmp_path: Path) -> None:
    path = tmp_path / "endpoint.json"
    write_endpoint(path, EndpointFile(url="https://new:1", epoch=2))
    with pytest.raises(Conflict):
        write_endpoint(path, EndpointFile(url="https://old:1", epoch=1))
    assert EndpointFile.model_validate_json(path.read_bytes()).url == "https://new:1"
