#!/usr/bin/env bash
# Everything that only a GPU can show, in under 6 minutes: needs one GPU, python3 with torch (CUDA), cupy, numba and
# mpi4py. Prints a table; writes build/gpu_check.json (or the path in the first argument).
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
exec timeout 355 "${PYTHON:-python3}" -m benchmarks.gpu_check --output "${1:-build/gpu_check.json}"
