"""`python protos/generate.py FOLDER`: generate the package `specdec.protos` below a folder from the protos of this one.

protoc names a module after the path of its file, `protos.common.v1.common_pb2`. Several projects install a top-level
package of the name `protos`, so the generated modules go below `specdec`, and their imports are changed to match.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLUGINS = ("--python_out=", "--grpc_python_out=", "--mypy_out=quiet:", "--mypy_grpc_out=quiet:")


def main(folder: Path) -> None:
    """Write the generated modules to `folder`/specdec/protos."""
    package = folder / "specdec"
    package.mkdir(parents=True, exist_ok=True)
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos").rglob("*.proto"))
    outputs = [f"{plugin}{package.resolve()}" for plugin in PLUGINS]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, *sources]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # protoc looks its plugins up there
    subprocess.run(command, cwd=ROOT, env=os.environ | {"PATH": path}, check=True)
    for module in (package / "protos").rglob("*_pb2*.py*"):
        if module.suffix in (".py", ".pyi"):
            code = re.sub(r"^from protos\.", "from specdec.protos.", module.read_text(), flags=re.MULTILINE)
            # The classes' module, by which pickle finds them.
            module.write_text(code.replace("(DESCRIPTOR, 'protos.", "(DESCRIPTOR, 'specdec.protos."))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
