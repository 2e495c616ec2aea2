"""A gateway whose store accepts a round from any owner. It replaces `gateway` as a control."""

import sys

from gateway.__main__ import main
from gateway.store import lua

_COMMIT = "sessions/commit"
_CHECKED = {
    "if tonumber(m[5]) ~= epoch then return 'FENCED' end": "",
    "if base < n or m[2] ~= 'GEN' then": "if false then",
}
_script = lua.script


def _without_fence(name: str) -> str:
    script = _script(name)
    if name != _COMMIT:
        return script
    for line, unfenced in _CHECKED.items():
        if line not in script:
            raise RuntimeError(f"{name} does not read {line!r} any more")
        script = script.replace(line, unfenced)
    return script


if __name__ == "__main__":
    lua.script = _without_fence
    sys.exit(main())
