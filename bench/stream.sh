#!/usr/bin/env bash
# Streams: zfs send and receive against the raw backing file read and written in one go, and against zfs-fuse
# with the same files; also from one into the other through a pipe. Nothing is cached before. Prints ratios.
. "$(dirname "$0")/lib.sh"
megabytes=${BENCH_MEGABYTES:-1024}; files=${BENCH_FILES:-2000}; rounds=${BENCH_ROUNDS:-3}
mkdir -p "$work/disks" "$work/files/many"
truncate -s 8G "$work/disks/millpond" "$work/disks/target" "$work/disks/zfsfuse"
dd if=/dev/urandom of="$work/files/big" bs=1M count="$megabytes" status=none
python3 - "$work/files/many" "$files" <<'PY'
import os, sys
for i in range(int(sys.argv[2])):
    with open(f"{sys.argv[1]}/f{i}", "wb") as file: file.write(os.urandom(16384))
PY
bytes=$((megabytes * 1048576 + files * 16384))

start_millpond
"$millpond" zpool create -o ashift=12 -O compression=off -O atime=off -m "$work/mp" bench "$work/disks/millpond"
"$millpond" zpool create -o ashift=12 -O compression=off -m none target "$work/disks/target"
cp -r "$work/files/." "$work/mp/"
"$millpond" zfs snapshot bench@a
start_zfs_fuse
zpool_old create -m "$work/zf" -O compression=off -O atime=off "$old_pool" "$work/disks/zfsfuse"
cp -r "$work/files/." "$work/zf/"
zfs_old snapshot "$old_pool@a"
cat "$work/files/big" "$work/files/many/"* >"$work/raw"

cool() {
  sync
  "$millpond" zpool export bench; "$millpond" zpool import -d "$work/disks" bench
  (cd /; zpool_old export "$old_pool"; zpool_old import -d "$work/disks" "$old_pool")
  echo 3 >/proc/sys/vm/drop_caches 2>/dev/null || true
}
# rate COMMAND...: megabytes of files per second.
rate() {
  local begin end
  begin=$(date +%s.%N); "$@" >&2; end=$(date +%s.%N)
  awk -v a="$begin" -v b="$end" -v n="$bytes" 'BEGIN { printf "%.0f", n / 1e6 / (b - a) }'
}
best() { printf '%s\n' "$@" | sort -n | tail -n 1; }

raw_read() { dd if="$work/raw" of=/dev/null bs=1M status=none; }
raw_write() { dd if="$work/stream" of="$work/raw.copy" bs=1M conv=fsync status=none; }
send() { "$millpond" zfs send bench@a >/dev/null; }
receive() { "$millpond" zfs receive -u target/copy <"$work/stream" && "$millpond" zpool sync target; }
through() { "$millpond" zfs send bench@a | "$millpond" zfs receive -u target/copy && "$millpond" zpool sync target; }
send_old() { zfs_old send "$old_pool@a" >/dev/null; }
receive_old() { zfs_old receive -u "$old_pool/copy" <"$work/stream.old" && sync; }
forget() { "$millpond" zfs destroy -r target/copy 2>/dev/null || true; "$millpond" zpool sync target; zfs_old destroy -r "$old_pool/copy" 2>/dev/null || true; rm -f "$work/raw.copy"; sync; }

"$millpond" zfs send bench@a >"$work/stream"
zfs_old send "$old_pool@a" >"$work/stream.old"
declare -A all=()
for round in $(seq "$rounds"); do
  echo "round $round of $rounds" >&2
  for what in raw_read send send_old; do cool; all[$what]+=" $(rate "$what")"; done
  for what in raw_write receive receive_old through; do
    forget; cool
    cat "$work/stream" "$work/stream.old" >/dev/null  # Of these two memory is the source.
    all[$what]+=" $(rate "$what")"
  done
done
# shellcheck disable=SC2086
for what in "${!all[@]}"; do all[$what]=$(best ${all[$what]}); done
printf '\n%-34s %12s %12s %12s %10s %12s\n' "streams (MB/s)" raw millpond zfs-fuse "mp / raw" "mp / zfs-fuse"
line() { printf '%-34s %12s %12s %12s %10s %12s\n' "$1" "$2" "$3" "$4" "$(ratio "$3" "$2")" "$(ratio "$3" "$4")"; }
line send "${all[raw_read]}" "${all[send]}" "${all[send_old]}"
line receive "${all[raw_write]}" "${all[receive]}" "${all[receive_old]}"
line "send into receive" "${all[raw_write]}" "${all[through]}" -
cd /; zpool_old destroy "$old_pool" || true
