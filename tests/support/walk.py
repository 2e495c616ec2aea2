"""Files of this project that the code of a test enters."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[2]


class Walk:
    """Files whose functions were called, in this thread and in all that began inside `walked`."""

    def __init__(self) -> None:
        self.entered: set[str] = set()

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Record a call; a profile function of the interpreter."""
        if event == "call":
            self.entered.add(frame.f_code.co_filename)

    def restart(self) -> None:
        """Forget the files entered so far."""
        self.entered.clear()

    def of(self, package: str) -> list[str]:
        """Return the entered files of one top-level package."""
        folder = ROOT / package
        return sorted(str(Path(path).relative_to(ROOT)) for path in self.entered if path.startswith(f"{folder}/"))


@contextmanager
def walked() -> Iterator[Walk]:
    """Record the files entered inside the context."""
    walk = Walk()
    threading.setprofile(walk.note)
    sys.setprofile(walk.note)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # which ends it
