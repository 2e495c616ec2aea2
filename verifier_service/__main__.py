"""Entry point. `python -m verifier_service --config FILE` serves; with `check` before `--config`, it only checks."""

import sys

from specdec.serving.command import ServiceCommand
from verifier_service.config import VerifierSettings

main = ServiceCommand(
    "verifier", "Hosts the target model and verifies drafts.", VerifierSettings, "verifier_service"
).run

if __name__ == "__main__":
    sys.exit(main())
