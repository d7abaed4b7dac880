#!/usr/bin/env bash
# RAID-Z arithmetic: what everybody calls here against the fastest implementation that OpenZFS's raidz_test -B finds for
# the same operation and size of block (8 data columns). Rounds of the two take turns on one core, the medians count.
# Prints GB/s of blocks as ours/theirs, and the ratio; BENCH_ROUNDS rounds (of about four minutes, which are raidz_test's).
. "$(dirname "$0")/lib.sh"
rounds=${BENCH_ROUNDS:-3}; core=${BENCH_CORE:-0}
ours=$CARGO_TARGET_DIR/release/examples/raidz_speed
theirs=$(command -v raidz_test || echo "${XDG_CACHE_HOME:-$HOME/.cache}/millpond/zfs-test/usr/bin/raidz_test")
[ -x "$theirs" ] || { echo "there is no raidz_test; scripts/install test unpacks it (package zfs-test)" >&2; exit 1; }

for round in $(seq "$rounds"); do
  taskset -c "$core" "$ours" >"$work/ours.$round"
  taskset -c "$core" "$theirs" -B >"$work/theirs.$round"
  taskset -c "$core" "$ours" >"$work/ours.$round.after"
done
python3 - "$work" <<'PY'
import collections, glob, statistics, sys

def rates(pattern):
    """GB/s of blocks by operation, size and implementation: medians."""
    samples = collections.defaultdict(list)
    for name in glob.glob(pattern):
        for line in open(name):
            words = [word.strip() for word in line.split(",")]
            if len(words) == 7 and words[3].isdigit():
                samples[words[1], int(words[3]), words[0]].append(float(words[4]) * int(words[2]) * 2**20 / 1e9)
    best = {}
    for (operation, size, implementation), values in samples.items():
        best[operation, size] = max(best.get((operation, size), (0, "")), (statistics.median(values), implementation))
    return best

ours, theirs = rates(sys.argv[1] + "/ours.*"), rates(sys.argv[1] + "/theirs.*")
assert ours.keys() == theirs.keys(), "the two measure different things"
operations = list(dict.fromkeys(operation for operation, _ in ours))
print(f"{'KiB':>6}" + "".join(f"{operation:>18}" for operation in operations))
for size in sorted({size for _, size in ours}):
    cells = [
        f"{ours[key][0]:.1f}/{theirs[key][0]:.1f} {ours[key][0] / theirs[key][0]:5.2f}" if key in ours else "-"
        for key in ((operation, size) for operation in operations)
    ]
    print(f"{size >> 10:>6}" + "".join(f"{cell:>18}" for cell in cells))
lowest, key = min((ours[key][0] / theirs[key][0], key) for key in ours)
print(f"lowest ratio: {lowest:.2f} ({key[0]}, {key[1] >> 10} KiB, against {theirs[key][1]})")
PY
