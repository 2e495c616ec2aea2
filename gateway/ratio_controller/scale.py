"""Reads and writes the scale of one Deployment, and nothing else of it."""

from dataclasses import dataclass
from typing import Any

_CONFLICT = 409


@dataclass(frozen=True, slots=True)
class Scale:
    """The number of replicas of a Deployment."""

    replicas: int
    version: str
    """The resource version of the Deployment."""


class DeploymentScale:
    """The `scale` subresource of one Deployment."""

    def __init__(self, api: Any, namespace: str, name: str) -> None:
        """Args: api: an ApiClient of kubernetes.aio."""
        from kubernetes.aio import client

        self._client = client
        self._apps = client.AppsV1Api(api)
        self._namespace = namespace
        self._name = name

    async def read(self) -> Scale:
        """The present scale.

        Raises:
            ApiException, OSError: it cannot be read.
        """
        found = await self._apps.read_namespaced_deployment_scale(self._name, self._namespace)
        return Scale(found.spec.replicas or 0, found.metadata.resource_version)

    async def write(self, replicas: int, version: str) -> bool:
        """Set the replicas; False, and no change, when the Deployment was changed after `version`.

        Raises:
            ApiException, OSError: it cannot be written.
        """
        body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        try:
            await self._apps.patch_namespaced_deployment_scale(
                self._name, self._namespace, body, _content_type="application/merge-patch+json"
            )
        except self._client.ApiException as error:
            if error.status == _CONFLICT:
                return False
            raise
        return True
