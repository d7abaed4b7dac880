#!/usr/bin/env bash
# Deduplication: data that is nowhere yet, and data that is there already, written to a filesystem with dedup=on against
# one without, while the table is many times larger than the server's cache. Prints MB per second and ratios.
. "$(dirname "$0")/lib.sh"
gigabytes=${BENCH_GIGABYTES:-4}; megabytes=${BENCH_MEGABYTES:-512}; rounds=${BENCH_ROUNDS:-3}
cache=${BENCH_CACHE:-64M}; record=${BENCH_RECORD:-4K}
mkdir -p "$work/disks"
truncate -s 32G "$work/disks/millpond"
start_millpond --cache "$cache"
"$millpond" zpool create -o ashift=12 -O compression=off -O atime=off -O recordsize="$record" -m "$work/mp" bench "$work/disks/millpond"
"$millpond" zfs create bench/plain
"$millpond" zfs create -o dedup=on bench/dedup

echo "filling the table with $gigabytes GiB in records of $record" >&2
for part in $(seq $((gigabytes * 1024 / megabytes))); do
  dd if=/dev/urandom of="$work/mp/dedup/old.$part" bs=1M count="$megabytes" status=none
done
"$millpond" zpool sync bench
"$millpond" zpool status -D bench | grep -E 'DDT entries|dedup:' >&2 || true

# rate FILE FILESYSTEM: megabytes per second until all is on disk.
rate() {
  local begin end
  begin=$(date +%s.%N)
  dd if="$1" of="$work/mp/$2/new" bs=1M conv=fsync status=none
  "$millpond" zpool sync bench
  end=$(date +%s.%N)
  awk -v a="$begin" -v b="$end" -v n="$megabytes" 'BEGIN { printf "%.1f", n * 1.048576 / (b - a) }'
}
median() { printf '%s\n' "$@" | sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

plain=(); unique=(); known=()
for round in $(seq "$rounds"); do
  echo "round $round of $rounds" >&2
  dd if=/dev/urandom of="$work/source" bs=1M count="$megabytes" status=none
  plain+=("$(rate "$work/source" plain)")
  unique+=("$(rate "$work/source" dedup)")
  dd if="$work/mp/dedup/old.$round" of="$work/source" bs=1M status=none
  known+=("$(rate "$work/source" dedup)")
  rm -f "$work/mp/plain/new" "$work/mp/dedup/new"
  "$millpond" zpool sync bench
done
p=$(median "${plain[@]}"); u=$(median "${unique[@]}"); k=$(median "${known[@]}")
printf '\n%-44s %10s %8s\n' "written, MB/s" "" "/ plain"
printf '%-44s %10s\n' "plain" "$p"
printf '%-44s %10s %8s\n' "dedup=on, new data" "$u" "$(ratio "$u" "$p")"
printf '%-44s %10s %8s\n' "dedup=on, data that is there" "$k" "$(ratio "$k" "$p")"
