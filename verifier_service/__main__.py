"""`python -m verifier_service --config FILE` serves; `python -m verifier_service check --config FILE` only checks."""

import sys

from specdec.serving.command import ServiceCommand
from verifier_service.config import VerifierSettings

main = ServiceCommand(
    "verifier", "Hosts the target model and verifies drafts.", VerifierSettings, "verifier_service"
).run

if __name__ == "__main__":
    sys.exit(main())
