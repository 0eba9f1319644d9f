#!/bin/sh
# Runs what needs a card: the L3 scripts and a few VRAM points, with the Python that is named, no Docker, no network.
#
#   bin/gpu_check.sh [PYTHON] [FOLDER] [NAME ...]     default: python3, a new folder ./gpu-check, all of them
#
# Writes one JSON document a run to FOLDER and summary.json over all; a line a run goes to standard output. At most 6
# minutes: a run gets what is left of them. Exit status: 0 no check failed, 1 one did, 2 one broke or had no time, 3 there
# is no card that torch can use.
set -u
here=$(cd "$(dirname "$0")" && pwd)
python=${1:-python3}
[ "$#" -gt 0 ] && shift
exec "$python" "$here/gpu_check.py" "$@"
