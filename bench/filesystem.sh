#!/usr/bin/env bash
# Files: Millpond through FUSE against the raw backing filesystem and zfs-fuse, same jobs, by turns. Prints ratios of medians:
# a job takes half a second to a few seconds, in which anything may come between on a shared machine.
. "$(dirname "$0")/lib.sh"
size=${BENCH_SIZE:-1G}; seconds=${BENCH_SECONDS:-10}; files=${BENCH_FILES:-10000}; rounds=${BENCH_ROUNDS:-3}
systems=(raw millpond zfsfuse)

# job DIR UNIT OPTIONS...: prints the figure (MB/s for bw, operations per second for iops).
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

# Each line: name, unit, what comes before (a file to be removed, or nothing cached), fio's options.
runs=(
  "sequential write 1M|bw|big|--rw=write --bs=1M --size=$size --end_fsync=1 --filename=big"
  "sequential read 1M|bw|cold|--rw=read --bs=1M --size=$size --filename=big"
  "random read 4K|iops||--rw=randread --bs=4k --size=$size --filename=big --runtime=$seconds --time_based"
  "random write 4K, new file|iops|fresh|--rw=randwrite --bs=4k --size=$size --filename=fresh --runtime=$seconds --time_based --end_fsync=1"
  "random rewrite 4K|iops||--rw=randwrite --bs=4k --size=$size --filename=big --runtime=$seconds --time_based --end_fsync=1"
  "synchronous write 4K, 1 client|iops||--rw=write --bs=4k --size=64M --fsync=1 --numjobs=1 --runtime=$seconds --time_based"
  "synchronous write 4K, 16 clients|iops||--rw=write --bs=4k --size=64M --fsync=1 --numjobs=16 --runtime=$seconds --time_based"
  "synchronous write 4K, 64 clients|iops||--rw=write --bs=4k --size=16M --fsync=1 --numjobs=64 --runtime=$seconds --time_based"
)
names=("${runs[@]%%|*}" "create 2 KiB files" "stat" "delete")
count=${#runs[@]}
declare -A figures=() medians=()

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
data = b"x" * 2048
def create(path):
    # Python's own open() asks each file whether it is a terminal.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(file, data)
    os.close(file)
print("%.0f %.0f %.0f" % (timed(create), timed(os.stat), timed(os.unlink)))
for d in range(100): os.rmdir(f"{root}/d{d}")
os.rmdir(root)
PY
}

# Nothing of a system is in memory any more.
cool() {
  case $1 in
    millpond) "$millpond" zpool export bench; "$millpond" zpool import -d "$work/disks" bench ;;
    zfsfuse) (cd /; zpool_old export "$old_pool"; zpool_old import -d "$work/disks" "$old_pool") ;;
  esac
  echo 3 >/proc/sys/vm/drop_caches 2>/dev/null || true
}

# What a job left to be written does not come into the next one's time.
settle() { "$millpond" zpool sync bench; sync; sleep 0.3; }

measure() { # INDEX of a job
  local name unit before options system
  IFS='|' read -r name unit before options <<<"${runs[$1]}"
  for system in "${systems[@]}"; do
    case $before in
      big | fresh) rm -f "${dirs[$system]}/$before" ;;
    esac
    settle
    [ "$before" != cold ] || cool "$system"
    # shellcheck disable=SC2086
    figures[$system,$1]+=" $(job "${dirs[$system]}" "$unit" $options)"
  done
}

mkdir -p "$work/raw" "$work/disks"
truncate -s 8G "$work/disks/millpond" "$work/disks/zfsfuse"
start_millpond
"$millpond" zpool create -o ashift=12 -O compression=off -m "$work/mp" bench "$work/disks/millpond"
start_zfs_fuse
zpool_old create -m "$work/zf" -O compression=off $old_pool "$work/disks/zfsfuse"
declare -A dirs=([raw]=$work/raw [millpond]=$work/mp [zfsfuse]=$work/zf)

for round in $(seq "$rounds"); do
  echo "round $round of $rounds" >&2
  for i in "${!runs[@]}"; do measure "$i"; done
  for system in "${systems[@]}"; do
    settle
    read -r a b c <<<"$(metadata "${dirs[$system]}")"
    figures[$system,$count]+=" $a" figures[$system,$((count + 1))]+=" $b" figures[$system,$((count + 2))]+=" $c"
  done
done
cd /; zpool_old destroy $old_pool || true
umount -l /zfs-kstat 2>/dev/null || true

median() { tr ' ' '\n' <<<"$1" | sed '/^$/d' | sort -g | awk '{a[NR] = $1} END {print a[int((NR + 1) / 2)]}'; }
printf '\n%-34s %12s %12s %12s %10s %12s\n' "files (MB/s or operations/s)" raw millpond zfs-fuse "mp / raw" "mp / zfs-fuse"
for i in "${!names[@]}"; do
  for system in "${systems[@]}"; do medians[$system,$i]=$(median "${figures[$system,$i]}"); done
  r=${medians[raw,$i]} m=${medians[millpond,$i]} z=${medians[zfsfuse,$i]}
  printf '%-34s %12s %12s %12s %10s %12s\n' "${names[$i]}" "$r" "$m" "$z" "$(ratio "$m" "$r")" "$(ratio "$m" "$z")"
done
for system in "${systems[@]}"; do
  printf 'synchronous writes, 64 clients / 1 client, %-10s %8s\n' "$system" "$(ratio "${medians[$system,$((count - 1))]}" "${medians[$system,$((count - 3))]}")"
done
