#!/bin/sh
# arctic.sh FOLDER VENV: builds arctic-inference, which vLLM's suffix decoding needs, against the PyTorch of VENV, into FOLDER.
set -e
folder=$(realpath -m "$1")
site=$("$2/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
python3 -m venv "$folder/.tools"
"$folder/.tools/bin/pip" install --quiet nanobind==2.9.2 setuptools wheel
"$folder/.tools/bin/python" -c 'import sys, sysconfig; print(sys.argv[1], file=open(sysconfig.get_paths()["purelib"] + "/torch.pth", "w"))' "$site"
# Its build looks for python3, and for what it is built with, on the PATH.
PATH="$folder/.tools/bin:$PATH" "$folder/.tools/bin/pip" install --quiet --no-build-isolation --no-deps --target "$folder" \
	arctic-inference==0.3.0
touch "$folder/.installed"
