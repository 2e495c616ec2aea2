"""Connects to the Kubernetes API, from inside a pod or with a kubeconfig file."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from pydantic import Field

from specdec.errors import ConfigError
from specdec.serving.settings import Section

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class ClusterSettings(Section):
    """Which cluster and which namespace."""

    kubeconfig: Path | None = None
    """A kubeconfig file; None takes the service account of the pod."""
    namespace: str = ""
    """A namespace; empty takes the one of the pod."""
    timeout: float = Field(default=5.0, gt=0)
    """Seconds within which the API server must answer."""

    @property
    def chosen_namespace(self) -> str:
        """The namespace of the settings, or else of the pod.

        Raises:
            ConfigError: no namespace is set, and this process does not run in a pod.
        """
        if self.namespace:
            return self.namespace
        try:
            return _NAMESPACE.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError("cluster.namespace must be set outside a pod") from error


async def found(answer: Awaitable[Any]) -> Any:
    """Return the API server's answer; None if the object does not exist. Other errors are raised."""
    from kubernetes.aio import client

    try:
        return await answer
    except client.ApiException as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise


@asynccontextmanager
async def connect(settings: ClusterSettings) -> AsyncIterator[Any]:
    """An ApiClient of kubernetes.aio, which is closed at the end.

    Raises:
        ConfigError: there are no credentials.
    """
    # The import takes a second, which a gateway with a static list does not need to spend.
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
