#!/usr/bin/env bash
# Blocks: a volume by iSCSI against tgt on a raw file, same client (iscsi-perf reads, qemu-img
# writes), one run. Prints ratios.
. "$(dirname "$0")/lib.sh"
seconds=${BENCH_SECONDS:-10}
mkdir -p "$work/disks"
truncate -s 4G "$work/disks/millpond"
start_millpond
"$millpond" zpool create -o ashift=12 -O compression=off -m none bench "$work/disks/millpond"
"$millpond" zfs create -s -V 256M -o volblocksize=4K -o millpond:iscsi=on bench/vol
dd if=/dev/urandom of="$work/state/zvol/bench/vol" bs=1M count=256 conv=notrunc status=none
"$millpond" zpool sync bench
iqn=$("$millpond" info | awk '/^iscsi:/ {print $2}')
ours=iscsi://127.0.0.1:$port/$iqn/0

tgt_port=$((port + 1))
dd if=/dev/urandom of="$work/disks/tgt" bs=1M count=256 status=none
tgtd -f -C 7 --iscsi portal=127.0.0.1:$tgt_port >"$work/tgtd.log" 2>&1 &
pids+=($!)
sleep 1
tgtadm -C 7 --lld iscsi --op new --mode target --tid 1 -T iqn.2026-11.bench:tgt
tgtadm -C 7 --lld iscsi --op new --mode logicalunit --tid 1 --lun 1 -b "$work/disks/tgt"
tgtadm -C 7 --lld iscsi --op bind --mode target --tid 1 -I ALL
theirs=iscsi://127.0.0.1:$tgt_port/iqn.2026-11.bench:tgt/1

# rate URL BLOCKS QUEUE [-r]: reads for some seconds; the last average in operations per second.
rate() {
  local url=$1 blocks=$2 queue=$3; shift 3
  timeout $((seconds + 30)) iscsi-perf -b "$blocks" -m "$queue" -t "$seconds" "$@" "$url" 2>&1 | tr '\r' '\n' \
    | grep -oE 'iops (average|current) [0-9]+' | tail -n 1 | grep -oE '[0-9]+' || echo 0
}

printf '\n%-34s %12s %12s %10s\n' "iSCSI reads, cached (operations/s)" millpond tgt "mp / tgt"
for spec in "4K random, queue 32|8|32|-r" "4K random, queue 1|8|1|-r" "64K sequential, queue 8|128|8|" \
  "128K sequential, queue 8|256|8|"; do
  IFS='|' read -r name blocks queue random <<<"$spec"
  rate "$ours" "$blocks" "$queue" $random >/dev/null  # warms the cache
  a=$(rate "$ours" "$blocks" "$queue" $random)
  b=$(rate "$theirs" "$blocks" "$queue" $random)
  printf '%-34s %12s %12s %10s\n' "$name" "$a" "$b" "$(ratio "$a" "$b")"
done

# written URL BYTES QUEUE COUNT: that many writes one after the other, in operations per second.
written() {
  qemu-img bench -w -f raw -s "$2" -d "$3" -c "$4" "$1" | awk -v n="$4" '/completed in/ {printf "%.0f", n / $4}'
}

printf '\n%-34s %12s %12s %10s\n' "iSCSI writes (operations/s)" millpond tgt "mp / tgt"
for spec in "4K sequential, queue 32|4096|32|30000" "4K sequential, queue 1|4096|1|5000" \
  "64K sequential, queue 8|65536|8|10000"; do
  IFS='|' read -r name bytes queue count <<<"$spec"
  written "$ours" "$bytes" "$queue" "$count" >/dev/null
  a=$(written "$ours" "$bytes" "$queue" $((count * seconds)))
  b=$(written "$theirs" "$bytes" "$queue" $((count * seconds)))
  printf '%-34s %12s %12s %10s\n' "$name" "$a" "$b" "$(ratio "$a" "$b")"
done
