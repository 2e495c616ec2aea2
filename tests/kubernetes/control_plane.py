"""A real control plane on loopback: etcd and kube-apiservers, each a process that is stopped by its id."""

import json
import secrets
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.integration.serving.certificates import Authority
from tests.support.addresses import free_addresses

START_SECONDS = 120
_NAME = "localhost"
_NO_CONTROLLERS = ("ServiceAccount", "StorageObjectInUseProtection")
"""Admission plugins that depend on controllers, for tokens and finalizers, that do not run here."""


class Process:
    """One process with a log, which can be restarted."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process."""
        with self._log.open("ab") as log:
            self._running = subprocess.Popen(self._command, stdout=log, stderr=log)

    def stop(self) -> None:
        """End the process and wait for its exit. Do nothing if it does not run."""
        if self._running is not None:
            self._running.kill()
            self._running.wait()
            self._running = None

    def check(self) -> None:
        """Fail with the end of the log if the process has ended."""
        if self._running is None or self._running.poll() is not None:
            raise AssertionError(f"{self._command[0]} has ended:\n{self._log.read_text(errors='replace')[-4000:]}")


class ApiServer:
    """One kube-apiserver."""

    def __init__(self, process: Process, address: str, authority: Path, admin: str) -> None:
        """`authority` signed its certificate; `admin` is a token with all rights."""
        self._process = process
        self.address = address
        self.authority = authority
        self.admin = admin

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"https://{_NAME}:{self.address.rpartition(':')[2]}"

    def start(self) -> None:
        """Start the server and wait until it is ready."""
        self._process.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._ready():
            self._process.check()
            assert time.monotonic() < deadline, "kube-apiserver does not become ready"
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop the server abruptly, as if its machine were lost."""
        self._process.stop()

    def kubeconfig(self, token: str, namespace: str, server: str = "") -> dict[str, Any]:
        """Write a kubeconfig for any client; `server` is another address of the same server."""
        cluster = {"server": server or self.url, "certificate-authority": str(self.authority)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "real", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "user", "namespace": namespace}}],
            "current-context": "real",
        }

    def _ready(self) -> bool:
        request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": f"Bearer {self.admin}"})
        try:
            with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=self.authority), timeout=5):
                return True
        except OSError:
            return False


class ControlPlane:
    """One etcd; used in a `with` block."""

    def __init__(self, binary: Path, folder: Path) -> None:
        """`binary` is a kube-apiserver with an etcd beside it; all files are written to `folder`."""
        self._binary = binary
        self._folder = folder
        self._etcd, peer = (f"http://{address}" for address in free_addresses(2))
        command = [str(binary.with_name("etcd")), *_etcd_flags(folder / "data", self._etcd, peer)]
        self._store = Process(command, folder / "etcd.log")
        self._servers: list[ApiServer] = []
        authority = Authority()
        self._serving = authority.issue(folder / "serving", _NAME)
        self._signing = authority.issue(folder / "signing", _NAME)
        self._admin = secrets.token_hex()
        (folder / "tokens.csv").write_text(f'{self._admin},admin,admin,"system:masters"\n')

    def serve(self, *flags: str) -> ApiServer:
        """Start another API server on the same etcd and wait until it is ready."""
        (address,) = free_addresses(1)
        command = [str(self._binary), *self._flags(address), *flags]
        log = self._folder / f"apiserver-{len(self._servers)}.log"
        server = ApiServer(Process(command, log), address, self._folder / "serving" / "ca.crt", self._admin)
        self._servers.append(server)
        server.start()
        return server

    def compact(self) -> None:
        """Compact etcd, which drops all versions but the last."""
        revision = self._ask("kv/range", {"key": "AA=="})["header"]["revision"]
        self._ask("kv/compaction", {"revision": revision, "physical": True})

    def __enter__(self) -> "ControlPlane":
        self._store.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.stop()
        self._store.stop()

    def _ask(self, what: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(f"{self._etcd}/v3/{what}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def _flags(self, address: str) -> list[str]:
        host, _, port = address.partition(":")
        given = {
            "etcd-servers": self._etcd,
            "bind-address": host,
            "advertise-address": "10.0.0.1",
            "secure-port": port,
            "insecure-port": "0",
            "tls-cert-file": str(self._serving.certificate),
            "tls-private-key-file": str(self._serving.key),
            "service-account-issuer": "https://local",
            "service-account-signing-key-file": str(self._signing.key),
            "service-account-key-file": str(self._signing.certificate),
            "authorization-mode": "RBAC",
            "token-auth-file": str(self._folder / "tokens.csv"),
            "service-cluster-ip-range": "10.96.0.0/24",
            "disable-admission-plugins": ",".join(_NO_CONTROLLERS),
            "endpoint-reconciler-type": "none",
            # Leaves the group to a CustomResourceDefinition that serves v1.
            "runtime-config": "discovery.k8s.io/v1beta1=false",
        }
        return [f"--{name}={value}" for name, value in given.items()]


def _etcd_flags(data: Path, clients: str, peers: str) -> list[str]:
    given = {
        "data-dir": str(data),
        "listen-client-urls": clients,
        "advertise-client-urls": clients,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"default={peers}",
    }
    return [f"--{name}={value}" for name, value in given.items()]
