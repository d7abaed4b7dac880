#!/usr/bin/env bash
# Many datasets: what one operation takes with a thousand snapshots and filesystems, and with ten thousand; and a
# thousand snapshots that are destroyed while somebody writes. Prints milliseconds each, and the ratios. Destroying a
# thousand of a thousand snapshots is compared with destroying the oldest thousand of ten thousand, and the newest:
# these have a deadlist with a key for each snapshot before, which has to be read and freed.
. "$(dirname "$0")/lib.sh"
many=${BENCH_MANY:-10000}; step=$((many / 10))
mkdir -p "$work/disks"
truncate -s 16G "$work/disks/d0"
start_millpond
"$millpond" zpool create -o ashift=12 -O compression=off -O atime=off -m none bench "$work/disks/d0"
"$millpond" zfs create -o mountpoint="$work/fs" bench/fs

now() { date +%s.%N; }
# each BEGIN COUNT: milliseconds since then for each of so many.
each() { awk -v a="$1" -v b="$(now)" -v n="$2" 'BEGIN { printf "%.2f", (b - a) * 1000 / n }'; }
took() { local begin; begin=$(now); "$@" >/dev/null; each "$begin" 1; }
line() { printf '%-44s %12s %12s %8s\n' "$1" "$2" "$3" "$(ratio "$3" "$2")"; }
# grow COMMAND NAME: COMMAND NAME0, NAME1, ...; sets 'first' and 'last', milliseconds each of the first and the last step.
grow() {
  local at begin
  for at in $(seq 0 $((many - 1))); do
    [ $((at % step)) -ne 0 ] || begin=$(now)
    "$millpond" zfs "$1" "$2$at"
    case $((at + 1)) in
      "$step") first=$(each "$begin" "$step"); if_few ;;
      "$many") last=$(each "$begin" "$step") ;;
    esac
    [ $(((at + 1) % step)) -ne 0 ] || echo "$1: $((at + 1)) of $many" >&2
  done
}
cycle() { "$millpond" zpool export bench; took "$millpond" zpool import -N -d "$work/disks" bench; }

writer() {
  python3 - "$work/fs/file" "$1" <<'PY'
import os, sys, time
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
data = os.urandom(1 << 20)
end, longest, at = time.time() + float(sys.argv[2]), 0, 0
while time.time() < end:
    begin = time.time()
    os.pwrite(fd, data, (at % 64) << 20)
    at += 1
    longest = max(longest, time.time() - begin)
    time.sleep(0.005)
print(f"{longest * 1000:.0f}")
PY
}
# destroy_run FILESYSTEM FIRST LAST: milliseconds for each of these snapshots, while somebody writes into bench/fs; his
# longest wait goes to the file 'longest'.
destroy_run() {
  local begin wait_for
  writer 10 >"$work/longest" & wait_for=$!
  begin=$(now)
  "$millpond" zfs destroy "$1@$2%$3"
  each "$begin" $((${3#s} - ${2#s} + 1))
  wait "$wait_for"
}

printf '\n%-44s %12s %12s %8s\n' "milliseconds each" "of $step" "of $many" "many / few"

# In a pool that has no other snapshots.
"$millpond" zfs mount bench/fs 2>/dev/null || true
"$millpond" zfs create -o canmount=off bench/few
for at in $(seq 0 $((step - 1))); do "$millpond" zfs snapshot "bench/few@s$at"; done
destroyed_few=$(destroy_run bench/few s0 "s$((step - 1))")
"$millpond" zfs destroy bench/few

if_few() { list_few=$(took "$millpond" zfs list -H -t snapshot -o name,used bench/fs); }
grow snapshot bench/fs@s
line "snapshot" "$first" "$last"
list=$(took "$millpond" zfs list -H -t snapshot -o name,used bench/fs)
line "list of snapshots, each" "$(awk -v a="$list_few" -v n="$step" 'BEGIN { print a / n }')" "$(awk -v a="$list" -v n="$many" 'BEGIN { print a / n }')"

# A writer's longest wait, without and with a thousand snapshots that go.
txg() { "$millpond" zfs snapshot "bench@$1" && "$millpond" zfs get -Hp -o value createtxg "bench@$1"; }
quiet=$(writer 10)
before=$(txg before)
oldest=$(destroy_run bench/fs s0 "s$((step - 1))")
after=$(txg after)
longest=$(cat "$work/longest")
newest=$(destroy_run bench/fs "s$((many - step))" "s$((many - 1))")
line "destroy of the oldest $step snapshots, each" "$destroyed_few" "$oldest"
line "destroy of the newest $step snapshots, each" "$destroyed_few" "$newest"
printf '%-44s %12s %12s\n' "a writer's longest wait: alone, meanwhile" "$quiet" "$longest"
printf '%-44s %12s\n' "transaction groups meanwhile" "$((after - before))"

import_few=$(cycle)
"$millpond" zfs create -o canmount=off bench/many
if_few() { list_few=$(took "$millpond" zfs list -H -r bench/many); import_some=$(cycle); }
grow create bench/many/f
line "create of a filesystem" "$first" "$last"
list=$(took "$millpond" zfs list -H -r bench/many)
line "list of filesystems, each" "$(awk -v a="$list_few" -v n="$step" 'BEGIN { print a / n }')" "$(awk -v a="$list" -v n="$many" 'BEGIN { print a / n }')"
line "import without mounts (none: $import_few)" "$import_some" "$(cycle)"
begin=$(now); "$millpond" zfs snapshot -r bench/many@all; line "snapshot -r, each" - "$(each "$begin" "$many")"
begin=$(now); "$millpond" zfs destroy -r bench/many; line "destroy -r, each" - "$(each "$begin" "$many")"
