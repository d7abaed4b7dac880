#!/usr/bin/env bash
# Reads of 4K a second of the server of 2010 whose owner published how its cache devices got warm,
# in simulated time: without a cache device, with ones that are filled at 7 MB/s and cold after a
# restart, and with today's defaults; then the same with a set of four times the memory.
# BENCH_SCALE=16 tells it at a sixteenth of all sizes instead of a 64th.
. "$(dirname "$0")/lib.sh"
for trial in warm-up warm-up-4x; do
  "$millpond" try "$trial" --scale "${BENCH_SCALE:-64}"
  echo
done
