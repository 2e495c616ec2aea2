"""The command `python -m gateway.certificates`: makes the certificates that are missing, and ends."""

import asyncio
import sys

from specdec.serving.rpc.server import run_service
from specdec.serving.telemetry.logs import configure


async def _make(stop: asyncio.Event) -> None:
    """Create the certificates; `stop` is ignored, because the next run completes an interrupted one."""
    from gateway.certificates.config import CertificateSettings
    from gateway.certificates.secrets import make_certificates

    settings = CertificateSettings.load()
    configure("certificates", settings.log)
    await make_certificates(settings)


if __name__ == "__main__":
    sys.exit(run_service(_make))
