#!/usr/bin/env bash
# Verifying a pool: 'zpool scrub -w' against 'zdb -e -bcc' on the same image, on two cores each; and reading a file
# through the engine against reading the image. Cold and cached. Prints ratios.
. "$(dirname "$0")/lib.sh"
size=${BENCH_SIZE:-4G}; cores=${BENCH_CORES:-0,1}
speed=$CARGO_TARGET_DIR/release/examples/pool_speed
bytes=$(numfmt --from=iec "$size")
export PATH=$PATH:/usr/sbin:/sbin

forget() { sync; python3 - "$@" <<'PY'
import os, sys
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
PY
}
remember() { cat "$1" >/dev/null; }
seconds() { local begin; begin=$(date +%s.%N); "$@" >"$work/out" 2>&1 || { cat "$work/out" >&2; exit 1; }; awk -v a="$begin" -v b="$(date +%s.%N)" 'BEGIN { printf "%.2f", b - a }'; }

mkdir -p "$work/disks"
image=$work/disks/d0
truncate -s "$((bytes + bytes / 8 + (256 << 20)))" "$image"
millpond_plain=$millpond
millpond_pinned() { taskset -c "$cores" "$millpond_plain" "$@"; }
taskset -c "$cores" "$millpond" daemon --iscsi "127.0.0.1:$port" >"$work/server.log" 2>&1 &
pids+=($!)
for _ in $(seq 100); do "$millpond" info 2>/dev/null | grep -q 'runs as' && break; sleep 0.1; done

"$millpond" zpool create -o ashift=12 -O compression=off -m "$work/mp" bench "$image"
python3 - "$work/mp" "$bytes" <<'PY'
import os, sys
root, total = sys.argv[1], int(sys.argv[2])
noise = os.urandom(64 << 20)
with open(root + "/big", "wb", buffering=0) as file:
    for at in range(0, total // 2, 1 << 20):
        begin = (at * 7) % (63 << 20)
        file.write(noise[begin:begin + (1 << 20)])
written = count = 0
while written < total // 2:
    if count % 500 == 0:
        os.mkdir(f"{root}/d{count // 500}")
    length = 8192 << (count % 8)
    begin = (count * 4099) % (62 << 20)
    with open(f"{root}/d{count // 500}/f{count}", "wb", buffering=0) as file:
        file.write(noise[begin:begin + length])
    written += length
    count += 1
print(f"{count} small files beside one of {total // 2} bytes")
PY
"$millpond" zpool export bench

scrub() {
  "$millpond" zpool import -o readonly=on -N -d "$work/disks" bench
  "$1" "$image"
  seconds millpond_pinned zpool scrub -w bench
  "$millpond" zpool status bench >"$work/status"
  grep -q 'with 0 errors' "$work/status" || { cat "$work/status" >&2; exit 1; }
  "$millpond" zpool export bench
}
# The script leaves out the seconds that zdb waits for before it ends.
zdb=$(dirname "$0")/../scripts/zdb
verify() { "$1" "$image"; seconds taskset -c "$cores" "$zdb" -e -p "$work/disks" -bcc bench; }
rate() { "$1" "$image"; taskset -c "$cores" "$speed" "${@:2}" | awk 'NR == 1 { print $5 }'; }

printf '\n%-40s %12s %12s %8s\n' "verifying $size (s)" millpond zdb "zdb / mp"
for state in forget remember; do
  mp=$(scrub $state); other=$(verify $state)
  name=cold; [ $state = forget ] || name=cached
  printf '%-40s %12s %12s %8s\n' "$name" "$mp" "$other" "$(ratio "$other" "$mp")"
done
printf '\n%-40s %12s %12s %8s\n' "sequential read, 1M (MB/s)" millpond "raw image" "mp / raw"
for state in forget remember; do
  mp=$(rate $state read "$work/disks" bench big); other=$(rate $state raw "$image" "$((bytes / 2))")
  name=cold; [ $state = forget ] || name=cached
  printf '%-40s %12s %12s %8s\n' "$name" "$mp" "$other" "$(ratio "$mp" "$other")"
done
