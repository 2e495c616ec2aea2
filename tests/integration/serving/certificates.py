"""The tests' own certificate authority and its certificates."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from specdec.serving.rpc.tls import DialTlsSettings

PEER = "specdec-verifier.namespace.svc"


class Authority:
    """An authority that issues certificates for DNS names."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("authority")
        basics = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = (
            _builder(self._name, self._name, self._key).add_extension(basics, True).sign(self._key, hashes.SHA256())
        )

    def issue(self, folder: Path, name: str = PEER) -> DialTlsSettings:
        """Write tls.crt, tls.key and ca.crt, as in a Kubernetes Secret."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        certificate = _builder(_name("leaf"), self._name, key).add_extension(names, False)
        folder.mkdir(exist_ok=True)
        pem = serialization.Encoding.PEM
        (folder / "tls.key").write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        (folder / "tls.crt").write_bytes(certificate.sign(self._key, hashes.SHA256()).public_bytes(pem))
        (folder / "ca.crt").write_bytes(self._certificate.public_bytes(pem))
        return DialTlsSettings(certificate=folder / "tls.crt", key=folder / "tls.key", ca=folder / "ca.crt", peer=name)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(hours=1))
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
