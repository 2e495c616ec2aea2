"""The way to the Kubernetes API: from inside a pod, or by a kubeconfig file."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import Field

from specdec.errors import ConfigError
from specdec.serving.settings import Section

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class ClusterSettings(Section):
    """Which cluster, and where in it."""

    kubeconfig: Path | None = None
    """The pod's own service account when None."""
    namespace: str = ""
    """The pod's own when empty."""
    timeout: float = Field(default=5.0, gt=0)
    """Seconds the API server has to answer."""

    @property
    def chosen_namespace(self) -> str:
        """The namespace that holds.

        Raises:
            ConfigError: none is given, and this is no pod.
        """
        if self.namespace:
            return self.namespace
        try:
            return _NAMESPACE.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError("cluster.namespace must be set outside a pod") from error


@asynccontextmanager
async def connect(settings: ClusterSettings) -> AsyncIterator[Any]:
    """An ApiClient of kubernetes.aio, closed at the end.

    Raises:
        ConfigError: no credentials.
    """
    # Importing it takes a second that a gateway with a static list need not spend.
    from kubernetes.aio import client, config

    configuration = client.Configuration()
    try:
        if settings.kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)
        else:
            await config.load_kube_config(
                config_file=str(settings.kubeconfig), client_configuration=configuration, persist_config=False
            )
    except (config.ConfigException, OSError) as error:
        raise ConfigError(f"no way to the Kubernetes API: {error}") from error
    async with client.ApiClient(configuration) as api:
        yield api
