"""`python -m drafter_service --config FILE` serves; `python -m drafter_service check --config FILE` checks."""

import sys

from drafter_service.config import DrafterSettings
from specdec.serving.command import ServiceCommand

main = ServiceCommand("drafter", "Drafts tokens for verifiers to check.", DrafterSettings, "drafter_service").run

if __name__ == "__main__":
    sys.exit(main())
