#!/usr/bin/env bash
# Checks and measures Octavo on a machine with a GPU, in under eight minutes: one command for a bare
# machine that has torch for CUDA and nvcc, without a package registry. `--help` says what it takes.
#
#   PYTHON          the interpreter that has torch (default: python3)
#   OCTAVO_WHEELS   a folder of wheels that the interpreter lacks, such as msgspec's and FlashInfer's:
#                   they are unpacked into a temporary folder, and nothing is installed
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
command -v "$python" > /dev/null || { echo "there is no '$python': name one with PYTHON=..."; exit 2; }
"$python" -c 'import torch' 2> /dev/null || {
    echo "'$python' has no torch: name an interpreter that has, with PYTHON=..."; exit 2; }

path=$PWD
if [[ -n ${OCTAVO_WHEELS:-} ]]; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" \
        "$OCTAVO_WHEELS"/*.whl
    path=$path:$site
fi
"$python" -c 'import sys; sys.path += sys.argv[1].split(":"); import msgspec' "$path" 2> /dev/null || {
    echo "'$python' has no msgspec: put its wheel in a folder, and name that with OCTAVO_WHEELS=..."
    exit 2; }
[[ -d /usr/local/cuda/bin ]] && export PATH=$PATH:/usr/local/cuda/bin # nvcc, for what is compiled
export PYTHONPATH=$path${PYTHONPATH:+:$PYTHONPATH}
"$python" -m benchmarks.gpu_check "$@"
