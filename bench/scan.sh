#!/usr/bin/env bash
# Scrub and resilver of a mirror in use, cold, against reading its disks in one sequence (`dd`,
# direct, both beside each other): on a pool just filled, then on one aged by random overwrites and
# deletes. Then what a scrub costs those who read meanwhile. The disks are loop devices held to what
# a hard disk does.
#   BENCH_SIZE    what is written first (2G)
#   BENCH_DISK    MB/s and operations per second of each disk (250:500; 0:0 does not hold them)
#   BENCH_SECONDS how long the readers run (10)
. "$(dirname "$0")/lib.sh"
size=${BENCH_SIZE:-2G}; disk=${BENCH_DISK:-250:500}; readers=${BENCH_SECONDS:-10}
bytes=$(numfmt --from=iec "$size")

now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.2f", b - a }'; }
# rate BYTES SECONDS: MB/s.
rate() { awk -v a="$1" -v s="$2" 'BEGIN { printf "%.0f", a / s / 1e6 }'; }

hold_disks 3 "$((bytes + bytes / 4 + (256 << 20)))" "$disk"
# What one disk does in one sequence, as much of it as the pool has allocated.
raw_both() {
  local begin count; begin=$(now); count=$(($1 >> 20))
  dd if="${loops[0]}" of=/dev/null bs=1M count=$count iflag=direct status=none & local first=$!
  dd if="${loops[1]}" of=/dev/null bs=1M count=$count iflag=direct status=none; wait $first
  rate "$((count << 20))" "$(since "$begin")"
}

start_millpond
"$millpond" zpool create -o ashift=12 -O compression=off -O primarycache=metadata -m "$work/mp" \
  bench mirror "${loops[0]}" "${loops[1]}"
"$millpond" zfs create -o recordsize=16K bench/small

allocated() { "$millpond" zpool list -Hpo allocated bench; }
again() {
  "$millpond" zpool export bench
  "$millpond" zpool import -d /dev bench
}
clean() {
  "$millpond" zpool status bench >"$work/status"
  grep -q 'with 0 errors' "$work/status" || { cat "$work/status" >&2; exit 1; }
}
scrub() {
  again
  local begin; begin=$(now)
  "$millpond" zpool scrub -w bench
  rate "$(allocated)" "$(since "$begin")"
  clean
}
# Replaces one disk by another, and leaves the bytes per second of what is read in `speed`.
old=1 new=2
resilver() {
  again
  local begin; begin=$(now)
  "$millpond" zpool replace -w bench "${loops[old]}" "${loops[new]}"
  speed=$(rate "$(allocated)" "$(since "$begin")")
  clean
  local swap=$old; old=$new; new=$swap
  "$millpond" zpool labelclear -f "${loops[new]}"
}
line() { printf '%-40s %10s %10s %8s\n' "$@"; }
# Each between two readings of the raw disks, whose mean it is compared with.
rows() {
  local size before after scrubbed
  size=$(allocated)
  before=$(raw_both "$size")
  scrubbed=$(scrub)
  after=$(raw_both "$size")
  local raw=$(((before + after) / 2))
  line "scrub, $1" "$scrubbed" "$raw" "$(ratio "$scrubbed" "$raw")"
  resilver
  before=$(raw_both "$size"); raw=$(((before + after) / 2))
  line "resilver, $1" "$speed" "$raw" "$(ratio "$speed" "$raw")"
}

python3 - "$work/mp" "$bytes" <<'PY'
import os, sys
root, total = sys.argv[1], int(sys.argv[2])
noise = os.urandom(64 << 20)
with open(root + "/big", "wb", buffering=0) as file:
    for at in range(0, total // 4, 1 << 20):
        begin = (at * 7) % (63 << 20)
        file.write(noise[begin:begin + (1 << 20)])
with open(root + "/small/base", "wb", buffering=0) as file:
    for at in range(0, total // 2, 1 << 20):
        begin = (at * 5) % (63 << 20)
        file.write(noise[begin:begin + (1 << 20)])
written = count = 0
while written < total // 4:
    if count % 500 == 0:
        os.mkdir(f"{root}/d{count // 500}")
    length = 8192 << (count % 8)
    begin = (count * 4099) % (62 << 20)
    with open(f"{root}/d{count // 500}/f{count}", "wb", buffering=0) as file:
        file.write(noise[begin:begin + length])
    written += length
    count += 1
PY
echo; line "$size, MB/s of each disk ($disk)" millpond "raw disk" "mp / raw"
rows "just filled"

# Two thirds of a database are written anew in pieces, in any order; every second file goes.
python3 - "$work/mp" "$bytes" <<'PY'
import os, random, sys
root, total = sys.argv[1], int(sys.argv[2])
random.seed(1)
noise = os.urandom(16 << 20)
pieces = total // 2 // 16384
fd = os.open(root + "/small/base", os.O_WRONLY)
for step in range(pieces * 2 // 3):
    at = random.randrange(pieces) * 16384
    begin = (step * 4099) % (15 << 20)
    os.pwrite(fd, noise[begin:begin + 16384], at)
    if step % 2000 == 0:
        os.fsync(fd)
os.close(fd)
for directory, _, names in os.walk(root):
    for name in names:
        if name.startswith("f") and int(name[1:]) % 2:
            os.unlink(f"{directory}/{name}")
PY
"$millpond" zpool sync bench
rows "aged"

# Mean and 99th percentile in microseconds of reads of 16 KiB that no cache answers.
latency() {
  fio --name=r --filename="$work/mp/small/base" --rw=randread --bs=16k --numjobs=1 --iodepth=1 \
    --time_based --runtime="$readers" --output-format=json --direct=1 --readonly |
    python3 -c 'import json,sys; r=json.load(sys.stdin)["jobs"][0]["read"]["clat_ns"]; print(int(r["mean"]/1000), int(r["percentile"]["99.000000"]/1000))'
}
again
read -r quiet quiet99 < <(latency)
( while [ ! -e "$work/enough" ]; do "$millpond" zpool scrub -w bench || exit 1; done ) & scrubs=$!
sleep 0.5
read -r busy busy99 < <(latency)
touch "$work/enough"; "$millpond" zpool scrub -s bench >/dev/null 2>&1 || true
wait $scrubs || true
echo; line "reading 16K at random (us)" scrub quiet "ratio"
line "mean" "$busy" "$quiet" "$(ratio "$busy" "$quiet")"
line "99th percentile" "$busy99" "$quiet99" "$(ratio "$busy99" "$quiet99")"
