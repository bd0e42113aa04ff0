"""The server's own certificate authority, created at the server's first start."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rollyard.core.errors import Invalid, Unavailable
from rollyard.trust.csr import private_pem
from rollyard.trust.secret_files import write_secret

CA_DAYS, CERTIFICATE_DAYS = 3650, 365
RENEW_BEFORE_DAYS = 30
CLOCK_SKEW = datetime.timedelta(minutes=10)


class Authority:
    """Signs the certificates of the server and of the engines' reverse proxies."""

    def __init__(self, folder: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._folder = folder
        self._key = key
        self._certificate = certificate

    @classmethod
    def open(cls, folder: Path) -> Authority:
        """Open the authority in `folder`, or create it if it is missing. The file `ca.pem` (0600) in the folder has
        the authority's key and certificate.

        Raises Unavailable if `ca.pem` does not contain an elliptic-curve key and its certificate.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / "ca.pem"
        if not path.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            write_secret(path, private_pem(key) + _self_signed(key).public_bytes(Encoding.PEM))
        pem = path.read_bytes()
        try:
            loaded, certificate = load_pem_private_key(pem, None), x509.load_pem_x509_certificate(pem)
        except ValueError as error:
            raise Unavailable(f"{path} is not a key with its certificate: {error}") from None
        if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != certificate.public_key():
            raise Unavailable(f"{path} must contain an elliptic-curve key and its certificate")
        return cls(folder, loaded, certificate)

    @property
    def ca_pem(self) -> str:
        return self._certificate.public_bytes(Encoding.PEM).decode()

    def server_certificate(self, hosts: Sequence[str]) -> Path:
        """Return a PEM file (0600) with the server's key and certificate.

        The file is made again if the hosts have changed, if another authority signed the certificate, or if the
        certificate expires within RENEW_BEFORE_DAYS. Raises Invalid for an empty list or an invalid host.
        """
        path = self._folder / "server.pem"
        if not (path.exists() and self._still_good(path, hosts)):
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = self._sign(key.public_key(), hosts)
            write_secret(path, private_pem(key) + certificate.public_bytes(Encoding.PEM))
        return path

    def sign_csr(self, pem: str, hosts: Sequence[str]) -> str:
        """Return a new certificate for `hosts`, followed by the authority's own, in PEM. Names in the request are
        ignored. Raises Invalid."""
        try:
            request = x509.load_pem_x509_csr(pem.encode())
            if not request.is_signature_valid:
                raise InvalidSignature
        except (ValueError, InvalidSignature):
            raise Invalid("csr must be a signed certificate request in PEM") from None
        public = request.public_key()
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise Invalid("csr must contain an elliptic-curve key")
        return self._sign(public, hosts).public_bytes(Encoding.PEM).decode() + self.ca_pem

    def _still_good(self, path: Path, hosts: Sequence[str]) -> bool:
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
            # The issuer's name proves nothing, because all authorities of Rollyard have the same name. So the signature is
            # checked.
            certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, InvalidSignature):
            return False
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
        return left.days > RENEW_BEFORE_DAYS and list(names) == _names(hosts)

    def _sign(self, public: ec.EllipticCurvePublicKey, hosts: Sequence[str]) -> x509.Certificate:
        now, names = datetime.datetime.now(datetime.UTC), _names(hosts)
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])]))
            .issuer_name(self._certificate.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(now + datetime.timedelta(days=CERTIFICATE_DAYS))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    """Convert hosts to names for a certificate. Raises Invalid for an empty list or an invalid host."""
    if not hosts:
        raise Invalid("a certificate needs at least one host name or address")
    return [_name(host) for host in dict.fromkeys(hosts)]


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass  # the host is not an IP address
    try:
        return x509.DNSName(host)
    except ValueError:
        raise Invalid(f"{host!r} is neither an address nor a host name in ASCII") from None


def _self_signed(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Rollyard CA")])
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
