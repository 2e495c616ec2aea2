"""Certificates that an installation makes itself: kept while they are valid, and usable for mutual TLS."""

import base64
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.certificates.authority import KeyPair, issue, make_authority
from gateway.certificates.config import CertificateSettings
from gateway.certificates.secrets import make_certificates
from gateway.discovery.cluster import ClusterSettings
from gateway.verifiers.client import VerifierClient
from specdec.errors import ConfigError, NoVerifier
from specdec.protos.verifier.v1 import verifier_pb2, verifier_pb2_grpc
from specdec.serving.rpc.access import Access
from specdec.serving.rpc.server import start_grpc
from specdec.serving.rpc.tls import Certificates
from tests.fake_kubernetes import FakeKubernetes
from tests.fake_kubernetes.store import Kind, Object

SECRETS: Kind = ("", "secrets", "ns")
NAMES = {"verifier-tls": ("verifier.ns.svc", "*.verifier-headless.ns.svc"), "gateway-tls": ("gateway.ns.svc",)}


@pytest.fixture
def settings(cluster: ClusterSettings) -> CertificateSettings:
    return CertificateSettings(authority="ca", names=NAMES, labels={"app": "a"}, cluster=cluster)


def _secret(name: str, pair: KeyPair, authority: KeyPair) -> Object:
    pems = {"tls.crt": pair.certificate_pem, "tls.key": pair.key_pem, "ca.crt": authority.certificate_pem}
    return {"metadata": {"name": name}, "data": {key: base64.b64encode(pem).decode() for key, pem in pems.items()}}


def _versions(api: FakeKubernetes) -> dict[str, str]:
    return {name: api.store.get(SECRETS, name)["metadata"]["resourceVersion"] for name in ("ca", *NAMES)}


def _serial(api: FakeKubernetes, name: str) -> int:
    data = api.store.get(SECRETS, name)["data"]
    pair = KeyPair.from_pems(base64.b64decode(data["tls.crt"]), base64.b64decode(data["tls.key"]))
    return pair.certificate.serial_number


def _access(api: FakeKubernetes, name: str, folder: Path, peer: str = "") -> Access:
    """Return the TLS settings of a pod that mounts the Secret."""
    folder.mkdir()
    secret = api.store.get(SECRETS, name)
    assert secret["type"] == "kubernetes.io/tls"
    for key, value in secret["data"].items():
        (folder / key).write_bytes(base64.b64decode(value))
    return Access(Certificates(folder / "tls.crt", folder / "tls.key", folder / "ca.crt", peer))


async def test_services_that_mount_them_know_each_other(
    settings: CertificateSettings, api: FakeKubernetes, tmp_path: Path
) -> None:
    class Verifier(verifier_pb2_grpc.VerifierServiceServicer):
        async def GetVerifierInfo(self, request: object, context: object) -> verifier_pb2.GetVerifierInfoResponse:
            return verifier_pb2.GetVerifierInfoResponse(model="target")

    await make_certificates(settings)
    server = await start_grpc(
        "127.0.0.1:0",
        lambda server: verifier_pb2_grpc.add_VerifierServiceServicer_to_server(Verifier(), server),
        [],
        access=_access(api, "verifier-tls", tmp_path / "v"),
    )
    try:
        for peer, known in (("verifier.ns.svc", True), ("drafter.ns.svc", False)):
            client = VerifierClient(server.address, _access(api, "gateway-tls", tmp_path / peer, peer))
            if known:
                assert (await client.info(5)).model == "target"
            else:
                with pytest.raises(NoVerifier):
                    await client.info(5)
            await client.close()
    finally:
        await server.stop(0)


async def test_what_is_sound_is_left_as_it_is(settings: CertificateSettings, api: FakeKubernetes) -> None:
    await make_certificates(settings)
    made = _versions(api)
    await make_certificates(settings)
    assert _versions(api) == made
    assert api.store.get(SECRETS, "gateway-tls")["metadata"]["labels"] == {"app": "a"}


async def test_what_is_missing_is_made_by_the_same_authority(
    settings: CertificateSettings, api: FakeKubernetes
) -> None:
    await make_certificates(settings)
    before = {name: _serial(api, name) for name in ("ca", *NAMES)}
    api.store.delete(SECRETS, "gateway-tls")
    await make_certificates(settings)
    after = {name: _serial(api, name) for name in ("ca", *NAMES)}
    assert {name for name in before if before[name] != after[name]} == {"gateway-tls"}


async def test_other_names_take_another_certificate(settings: CertificateSettings, api: FakeKubernetes) -> None:
    await make_certificates(settings)
    before = {name: _serial(api, name) for name in NAMES}
    renamed = settings.model_copy(update={"names": {**NAMES, "gateway-tls": ("gw.ns.svc",)}})
    await make_certificates(renamed)
    after = {name: _serial(api, name) for name in NAMES}
    assert {name for name in before if before[name] != after[name]} == {"gateway-tls"}


@pytest.mark.parametrize(("age", "renewed"), [(60, set()), (70, {"verifier-tls"})])
async def test_a_certificate_with_less_than_a_third_of_its_days_left_is_renewed(
    settings: CertificateSettings, api: FakeKubernetes, age: int, renewed: set[str]
) -> None:
    now = datetime.now(UTC)
    authority = make_authority("ca", 3650, now)
    api.store.create(SECRETS, _secret("ca", authority, authority))
    for name, days in (("verifier-tls", 100), ("gateway-tls", 3650)):
        old = issue(authority, NAMES[name], days, now - timedelta(days=age))
        api.store.create(SECRETS, _secret(name, old, authority))
    before = {name: _serial(api, name) for name in ("ca", *NAMES)}
    await make_certificates(settings)
    after = {name: _serial(api, name) for name in ("ca", *NAMES)}
    assert {name for name in before if before[name] != after[name]} == renewed


async def test_an_old_authority_takes_all_its_certificates_with_it(
    settings: CertificateSettings, api: FakeKubernetes
) -> None:
    authority = make_authority("ca", 100, datetime.now(UTC) - timedelta(days=70))
    api.store.create(SECRETS, _secret("ca", authority, authority))
    old = issue(authority, NAMES["gateway-tls"], 3650, datetime.now(UTC))
    assert old.certificate.not_valid_after_utc == authority.certificate.not_valid_after_utc
    api.store.create(SECRETS, _secret("gateway-tls", old, authority))
    await make_certificates(settings)
    assert _serial(api, "ca") != authority.certificate.serial_number
    assert _serial(api, "gateway-tls") != old.certificate.serial_number
    made = _versions(api)
    await make_certificates(settings)
    assert _versions(api) == made


def _run(api: FakeKubernetes, folder: Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run the Job's command with these settings in its environment."""
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(json.dumps(api.kubeconfig()))
    given = {"CLUSTER__KUBECONFIG": str(kubeconfig), "CLUSTER__NAMESPACE": "ns", **settings}
    environment = os.environ | {f"SPECDEC_CERTIFICATES_{name}": value for name, value in given.items()}
    command = [sys.executable, "-m", "gateway.certificates"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_the_command_makes_them_and_ends(api: FakeKubernetes, tmp_path: Path) -> None:
    done = _run(api, tmp_path, AUTHORITY="ca", NAMES=json.dumps(NAMES), DAYS="30", LABELS='{"app": "a"}')
    assert done.returncode == 0, done.stderr
    assert len(set(_versions(api).values())) == 3
    assert [json.loads(line)["secret"] for line in done.stderr.splitlines()] == ["ca", *NAMES]
    assert "PRIVATE KEY" not in done.stderr


def test_the_command_names_a_wrong_setting(api: FakeKubernetes, tmp_path: Path) -> None:
    done = _run(api, tmp_path, AUTHORITY="ca", NAMES='{"gateway-tls": []}')
    assert (done.returncode, "names.gateway-tls" in done.stderr) == (2, True), done.stderr


async def test_a_secret_of_somebody_else_is_not_taken_for_an_authority(
    settings: CertificateSettings, api: FakeKubernetes
) -> None:
    theirs = {"metadata": {"name": "ca"}, "data": {"tls.crt": "bm9uZQ==", "tls.key": "bm9uZQ=="}}
    api.store.create(SECRETS, theirs)
    with pytest.raises(ConfigError, match="secret ca holds no authority"):
        await make_certificates(settings)
    assert api.store.get(SECRETS, "ca")["data"] == theirs["data"]
