#!/usr/bin/env bash
# What `millpond plan` expects against what `millpond bench` measures, load by load, on three
# layouts of disks that are known: loop devices held to so many operations and bytes a second. The
# cache is small beside the set, as the planner knows none. Loads of 32K, as the records are: smaller
# writes would read first.
#   BENCH_SIZE    what the loads go over (2G)
#   BENCH_DISK    MB/s and operations per second of each disk (25:200)
#   BENCH_DEPTH   requests under way (9)
#   BENCH_SECONDS how long each load is measured (20)
. "$(dirname "$0")/lib.sh"
size=${BENCH_SIZE:-2G}; disk=${BENCH_DISK:-25:200}; depth=${BENCH_DEPTH:-9}
seconds=${BENCH_SECONDS:-20}
bytes=$(numfmt --from=iec "$size")

hold_disks 6 "$((bytes * 2 + (256 << 20)))" "$disk"
start_millpond --cache 256M

# measure LAYOUT DISKS VDEV...
measure() {
  local layout=$1 count=$2; shift 2
  "$millpond" zpool create -f -o ashift=12 -O compression=off \
    -O recordsize=32K -m "$work/mp" bench "$@"
  "$millpond" bench iometer "$work/mp" --size "$size" --depth "$depth" --warm-up 10 \
    --seconds "$seconds" --json --against plan --layout "$layout" --ashift 12 --record 32K \
    --disks "${count}x500GB:hdd:${disk#*:}seeks:${disk%:*}MB/s" >"$work/$count.json"
  "$millpond" zpool destroy bench
  python3 - "$layout" "$work/$count.json" <<'PY'
import json, sys
for test in json.load(open(sys.argv[2]))["tests"]:
    if "32K" not in test["name"]:
        continue
    planned, measured = test.get("planned_iops"), test["iops"]
    ratio = f"{planned / measured:.2f}" if planned else "-"
    print(f"{sys.argv[1]:<12} {test['name']:<28} {planned or 0:>9.0f} {measured:>9.0f} {ratio:>6}")
PY
}
printf '%-12s %-28s %9s %9s %6s\n' layout load planned measured ratio
measure mirror:2x2 4 mirror "${loops[0]}" "${loops[1]}" mirror "${loops[2]}" "${loops[3]}"
measure raidz:1x5 5 raidz "${loops[@]:0:5}"
measure raidz2:1x6 6 raidz2 "${loops[@]}"
