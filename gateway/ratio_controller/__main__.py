"""The command `python -m gateway.ratio_controller [serve|check] --config FILE`."""

import sys

from gateway.ratio_controller.config import RatioSettings
from specdec.serving.command import ServiceCommand

main = ServiceCommand(
    "ratio-controller",
    "Keeps the number of drafters in step with the verifiers.",
    RatioSettings,
    "gateway.ratio_controller",
).run

if __name__ == "__main__":
    sys.exit(main())
