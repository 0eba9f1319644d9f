#!/bin/sh
# Runs what needs a card: the L3 scripts and a few VRAM points, with the Python that is named, no Docker, no network.
#
#   bin/gpu_check.sh [PYTHON] [FOLDER]     default: python3, a new folder ./gpu-check
#
# Writes one JSON document a script to FOLDER, and a line a script to standard output. At most 6 minutes: each script has
# its own limit, and none is started after 330 s. Exit status: 0 when no check failed, 1 when one did.
set -u
python=${1:-python3}
out=${2:-gpu-check}
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out"
started=$(date +%s)
worst=0

run() { # name of the result, script, seconds, params
  now=$(($(date +%s) - started))
  if [ "$now" -ge 330 ]; then echo "$1: not started, $now s have passed"; return; fi
  printf '{"schema_version": 1, "time_limit_s": %s, "params": %s}\n' "$3" "$4" > "$out/$1.request.json"
  timeout "$(($3 + 15))" "$python" "$here/smoke_tests/$2.py" --request "$out/$1.request.json" \
    --result "$out/$1.json" 2> "$out/$1.log"
  status=$?
  if [ "$status" -ne 0 ]; then worst=1; fi
  echo "$1: exit $status, $(($(date +%s) - started)) s so far"
}

run probe probe 40 '{}'
run train_step train_step 60 '{}'
run card card 40 '{}'
run distributed distributed 90 '{"limit_s": 60.0}'
run onnx_round_trip onnx_round_trip 90 '{}'
run vram-base-fp16 vram_peak 60 '{}'
run vram-base-fp32 vram_peak 60 '{"precision": "fp32"}'
run vram-long-eager vram_peak 60 '{"attention": "eager", "batch": 4, "seq": 512}'
run vram-sgd vram_peak 60 '{"optimizer": "sgd"}'
exit "$worst"
