#!/usr/bin/env bash
# Files: Millpond through FUSE against the raw backing filesystem and zfs-fuse, same jobs, one run. Prints ratios.
. "$(dirname "$0")/lib.sh"
size=${BENCH_SIZE:-1G}; seconds=${BENCH_SECONDS:-10}; files=${BENCH_FILES:-10000}

# job DIR NAME OPTIONS...: prints the figure (MB/s for bw, operations per second for iops).
job() {
  local dir=$1 unit=$2; shift 2
  fio --output-format=json --name=b --directory="$dir" --ioengine=psync --group_reporting --fallocate=none "$@" >"$work/fio.json" 2>"$work/fio.err" \
    || { echo "fio failed in $dir: $*" >&2; cat "$work/fio.err" >&2; echo 0; return; }
  python3 - "$work/fio.json" "$unit" <<'PY'
import json, sys
jobs = json.load(open(sys.argv[1]))["jobs"]
side = lambda key: sum(j["read"][key] + j["write"][key] for j in jobs)
print("%.1f" % (side("bw_bytes") / 1e6 if sys.argv[2] == "bw" else side("iops")))
PY
}

# Each line: name, unit, fio's options.
runs=(
  "sequential write 1M|bw|--rw=write --bs=1M --size=$size --end_fsync=1 --filename=big"
  "sequential read 1M|bw|--rw=read --bs=1M --size=$size --filename=big"
  "random read 4K|iops|--rw=randread --bs=4k --size=$size --filename=big --runtime=$seconds --time_based"
  "random write 4K, new file|iops|--rw=randwrite --bs=4k --size=$size --filename=fresh --runtime=$seconds --time_based --end_fsync=1"
  "random rewrite 4K|iops|--rw=randwrite --bs=4k --size=$size --filename=big --runtime=$seconds --time_based --end_fsync=1"
  "synchronous write 4K, 1 client|iops|--rw=write --bs=4k --size=64M --fsync=1 --numjobs=1 --runtime=$seconds --time_based"
  "synchronous write 4K, 16 clients|iops|--rw=write --bs=4k --size=64M --fsync=1 --numjobs=16 --runtime=$seconds --time_based"
  "synchronous write 4K, 64 clients|iops|--rw=write --bs=4k --size=16M --fsync=1 --numjobs=64 --runtime=$seconds --time_based"
)

count=${#runs[@]}

metadata() { # DIR: creates, stats, deletes small files; prints three rates
  python3 - "$1" "$files" <<'PY'
import os, sys, time
root, count = sys.argv[1] + "/many", int(sys.argv[2])
os.mkdir(root)
def timed(work):
    begin = time.time()
    for i in range(count): work(f"{root}/d{i % 100}/f{i}")
    return count / (time.time() - begin)
for d in range(100): os.mkdir(f"{root}/d{d}")
def create(path):
    with open(path, "wb") as file: file.write(b"x" * 2048)
print("%.0f %.0f %.0f" % (timed(create), timed(os.stat), timed(os.unlink)))
PY
}

measure() { # NAME DIR [COMMAND to drop caches before the read]
  local name=$1 dir=$2 cold=${3:-true}
  for i in "${!runs[@]}"; do
    IFS='|' read -r _ unit options <<<"${runs[$i]}"
    [ "$i" != 1 ] || { sync; eval "$cold"; echo 3 >/proc/sys/vm/drop_caches 2>/dev/null || true; }
    # shellcheck disable=SC2086
    eval "result_${name}_$i=$(job "$dir" "$unit" $options)"
  done
  read -r a b c <<<"$(metadata "$dir")"
  eval "result_${name}_$count=$a result_${name}_$((count + 1))=$b result_${name}_$((count + 2))=$c"
}

mkdir -p "$work/raw" "$work/disks"
measure raw "$work/raw"
rm -rf "$work/raw"

truncate -s 8G "$work/disks/millpond"
start_millpond
"$millpond" zpool create -o ashift=12 -O compression=off -m "$work/mp" bench "$work/disks/millpond"
measure millpond "$work/mp" "'$millpond' zpool export bench; '$millpond' zpool import -d '$work/disks' bench"
"$millpond" zpool destroy bench
rm "$work/disks/millpond"

truncate -s 8G "$work/disks/zfsfuse"
export LD_LIBRARY_PATH=$(dirname "$(find "$zfs_fuse" -name libfuse.so.2 | head -n 1)")
(cd / && exec "$zfs_fuse/sbin/zfs-fuse" --no-daemon >"$work/zfs-fuse.log" 2>&1) &
pids+=($!)
sleep 2
zpool_old=$zfs_fuse/sbin/zpool
# A name of this run's own: zfs-fuse remembers the pools of a run that was stopped.
old_pool=zfbench$$
"$zpool_old" create -m "$work/zf" -O compression=off $old_pool "$work/disks/zfsfuse"
measure zfsfuse "$work/zf" "cd /; '$zpool_old' export $old_pool; '$zpool_old' import -d '$work/disks' $old_pool"
cd /; "$zpool_old" destroy $old_pool || true
umount -l /zfs-kstat 2>/dev/null || true

names=("${runs[@]%%|*}" "create 2 KiB files" "stat" "delete")
printf '\n%-34s %12s %12s %12s %10s %12s\n' "files (MB/s or operations/s)" raw millpond zfs-fuse "mp / raw" "mp / zfs-fuse"
for i in "${!names[@]}"; do
  r=result_raw_$i m=result_millpond_$i z=result_zfsfuse_$i
  printf '%-34s %12s %12s %12s %10s %12s\n' "${names[$i]}" "${!r}" "${!m}" "${!z}" "$(ratio "${!m}" "${!r}")" "$(ratio "${!m}" "${!z}")"
done

for name in raw millpond zfsfuse; do
  one=result_${name}_$((count - 3)) many=result_${name}_$((count - 1))
  printf 'synchronous writes, 64 clients / 1 client, %-10s %8s\n' "$name" "$(ratio "${!many}" "${!one}")"
done
