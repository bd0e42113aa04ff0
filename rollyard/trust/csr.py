"""Private key that never leaves its node, and the certificate signing request for this key."""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


def new_key_and_csr(common_name: str) -> tuple[bytes, bytes]:
    """Return (private key, signing request), both PEM; EC P-256."""
    key = ec.generate_private_key(ec.SECP256R1())
    # X.520 limits a common name to 64 characters. Clients check only the alternative names, which the authority sets.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return private_pem(key), request.public_bytes(Encoding.PEM)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
