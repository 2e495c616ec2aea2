"""Private CA of an installation, and the certificates it issues. Pure functions, except for random keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_CLOCK_SKEW = timedelta(minutes=5)
"""Amount by which `not_valid_before` is backdated, for machines whose clocks are late."""
_COMMON_NAME = 64
"""Longest common name, by RFC 5280."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def from_pems(cls, certificate: bytes, key: bytes) -> Self:
        """Parse both PEMs; raises ValueError if one is invalid, or the key is not an EC key."""
        read = serialization.load_pem_private_key(key, None)
        if not isinstance(read, ec.EllipticCurvePrivateKey):
            raise ValueError("the key is of another kind")
        return cls(x509.load_pem_x509_certificate(certificate), read)

    @property
    def certificate_pem(self) -> bytes:
        """The certificate as PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The private key as PEM, not encrypted."""
        kind, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return self.key.private_bytes(serialization.Encoding.PEM, kind, plain)

    def is_fresh(self, now: datetime) -> bool:
        """Whether more than a third of the certificate's lifetime is left."""
        ends, begins = self.certificate.not_valid_after_utc, self.certificate.not_valid_before_utc
        return ends - now > (ends - begins) / 3

    def is_issued_by(self, authority: "KeyPair", names: Sequence[str]) -> bool:
        """Whether the authority issued the certificate for exactly these DNS names."""
        try:
            self.certificate.verify_directly_issued_by(authority.certificate)
            found = self.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
            return False
        return found.get_values_for_type(x509.DNSName) == list(names)


def make_authority(name: str, days: int, now: datetime) -> KeyPair:
    """Create an authority valid for `days`. It can issue service certificates, but no further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(_name(name), key, now)
        .issuer_name(_name(name))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return KeyPair(builder.sign(key, hashes.SHA256()), key)


def issue(authority: KeyPair, names: Sequence[str], days: int, now: datetime) -> KeyPair:
    """Issue a server and client certificate for these DNS names; it does not outlast the authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    ends = min(now + timedelta(days=days), authority.certificate.not_valid_after_utc)
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _builder(_name(names[0]), key, now)
        .issuer_name(authority.certificate.subject)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(both, critical=False)
        .add_extension(issuer, critical=False)
    )
    return KeyPair(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:_COMMON_NAME])])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
