#!/usr/bin/env bash
# What consoles cost: throughput and memory with ten of them open against none, and what a year of figures takes.
. "$(dirname "$0")/lib.sh"
seconds=${BENCH_SECONDS:-10}
rounds=${BENCH_ROUNDS:-5}
consoles=${BENCH_CONSOLES:-10}
https=$((port + 1))
mkdir -p "$work/disks"
truncate -s 4G "$work/disks/millpond"
start_millpond --https "127.0.0.1:$https"
server=$("$millpond" info | sed -n 's/.*runs as process \([0-9]*\).*/\1/p' | head -n 1)
"$millpond" zpool create -o ashift=12 -O compression=off -m "$work/mnt" bench "$work/disks/millpond"
"$millpond" zfs create -s -V 256M -o volblocksize=4K -o millpond:iscsi=on bench/vol
dd if=/dev/urandom of="$work/state/zvol/bench/vol" bs=1M count=256 conv=notrunc status=none
"$millpond" zpool sync bench
iqn=$("$millpond" info | awk '/^iscsi:/ {print $2}')
url=iscsi://127.0.0.1:$port/$iqn/0
key=$("$millpond" apikey make bench --role operator | grep -oE 'mpk_[A-Za-z0-9_-]+' | head -n 1)
open=()

# ask PER_MINUTE PATH BODY: asks again and again on one connection, as an open page does.
ask() {
  curl -sk --rate "$1/m" -o /dev/null -H "Authorization: Bearer $key" -H 'Content-Type: application/json' \
    -d "$3" "https://127.0.0.1:$https$2?n=[1-100000]" &
  open+=($!)
}
# Each console: a stream of events, the overview's figures every 3 seconds, shares every 5, a report every 10.
open_consoles() {
  for _ in $(seq "$consoles"); do
    curl -skN -o /dev/null -H "Authorization: Bearer $key" "https://127.0.0.1:$https/v1/events" &
    open+=($!)
    ask 20 /v1/zpool/list '{"names":[]}'
    ask 12 /v1/shares/list '{}'
    ask 6 /v1/reports/get '{"subjects":[{"of":"pool","pool":"bench"}],"span":"day"}'
  done
  sleep 2
}
close_consoles() {
  kill ${open[@]+"${open[@]}"} 2>/dev/null || true
  wait ${open[@]+"${open[@]}"} 2>/dev/null || true
  open=()
}
leave() { close_consoles; finish; }
trap leave EXIT

resident() { awk '/^VmRSS:/ {print $2}' "/proc/$server/status"; }
ticks() { sed 's/.*) //' "/proc/$server/stat" | awk '{print $12 + $13}'; }
# reads: cached reads of 4K in operations per second. writes: a file written in MB per second.
reads() {
  timeout $((seconds + 30)) iscsi-perf -b 8 -m 32 -t "$seconds" -r "$url" 2>&1 | tr '\r' '\n' \
    | grep -oE 'iops average [0-9]+' | tail -n 1 | grep -oE '[0-9]+' || echo 0
}
writes() {
  fio --name=w --filename="$work/mnt/file" --rw=write --bs=1M --size=512M --ioengine=psync --time_based \
    --runtime="$seconds" --output-format=terse --terse-version=3 | awk -F';' 'NR == 1 {printf "%d", $48 / 1024}'
}

reads >/dev/null  # warms the cache
writes >/dev/null
none=(); with=(); wnone=(); wwith=()
quiet=$(resident)
for _ in $(seq "$rounds"); do
  none+=("$(reads)"); wnone+=("$(writes)")
  open_consoles
  with+=("$(reads)"); wwith+=("$(writes)")
  busy=$(resident)
  close_consoles
done
before=$(ticks); sleep "$seconds"; idle=$(($(ticks) - before))
open_consoles
before=$(ticks); sleep "$seconds"; polled=$(($(ticks) - before))
close_consoles

median() { printf '%s\n' "$@" | sort -n | awk '{all[NR] = $1} END {print all[int((NR + 1) / 2)]}'; }
cpu() { awk -v t="$1" -v s="$seconds" 'BEGIN { printf "%.1f", t / s }'; }
printf '\n%-42s %12s %12s %10s\n' "Consoles open (medians of $rounds)" none "$consoles" "with / none"
a=$(median "${none[@]}"); b=$(median "${with[@]}")
printf '%-42s %12s %12s %10s\n' "cached 4K reads by iSCSI (operations/s)" "$a" "$b" "$(ratio "$b" "$a")"
a=$(median "${wnone[@]}"); b=$(median "${wwith[@]}")
printf '%-42s %12s %12s %10s\n' "sequential writes on a mount (MB/s)" "$a" "$b" "$(ratio "$b" "$a")"
printf '%-42s %12s %12s %10s\n' "memory (KiB)" "$quiet" "$busy" "$(ratio "$busy" "$quiet")"
printf '%-42s %12s %12s\n' "processor without other load (percent)" "$(cpu "$idle")" "$(cpu "$polled")"
printf '%-42s %12s\n' "figures of a year (bytes)" "$(cat "$work"/state/figures/*.series | wc -c)"
