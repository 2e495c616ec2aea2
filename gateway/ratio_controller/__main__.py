"""The command `python -m gateway.ratio_controller [serve|check] --config FILE`."""

import sys
from collections.abc import Sequence

from gateway.ratio_controller.app import serve
from gateway.ratio_controller.check import check
from gateway.ratio_controller.config import RatioSettings
from specdec.serving.command import ServiceCommand


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    description = "Keeps the number of drafters in step with the verifiers."
    return ServiceCommand("ratio-controller", description, RatioSettings, serve, check).run(arguments)


if __name__ == "__main__":
    sys.exit(main())
