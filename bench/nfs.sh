#!/usr/bin/env bash
# Files by NFS version 3: a share of a pool against nfs-ganesha on a raw directory, same client
# (nfs-perf, one connection), one run. Prints ratios. Debian: nfs-ganesha, nfs-ganesha-vfs, rpcbind.
. "$(dirname "$0")/lib.sh"
seconds=${BENCH_SECONDS:-5}
perf=$CARGO_TARGET_DIR/release/examples/nfs-perf
mkdir -p "$work/disks" "$work/raw" "$work/mnt"
truncate -s 4G "$work/disks/millpond"
nfs_port=$((port + 2))
start_millpond --nfs "127.0.0.1:$nfs_port"
"$millpond" zpool create -o ashift=12 -O compression=off -O atime=off -m "$work/mnt" bench "$work/disks/millpond"
"$millpond" zfs set sharenfs=insecure,no_root_squash bench
ours=("127.0.0.1:$nfs_port" "127.0.0.1:$nfs_port" "$work/mnt")

command -v ganesha.nfsd >/dev/null || { echo "nfs-ganesha is not installed: apt-get install nfs-ganesha nfs-ganesha-vfs" >&2; exit 1; }
theirs_port=$((port + 3)) mount_port=$((port + 4))
# Ganesha gives up without a portmapper. Debian's rpcbind aborts when it is given an address (-h).
if ! rpcinfo 127.0.0.1 >/dev/null 2>&1; then rpcbind -f >"$work/rpcbind.log" 2>&1 & pids+=($!); sleep 1; fi
cat >"$work/ganesha.conf" <<EOF
NFS_Core_Param { NFS_Port = $theirs_port; MNT_Port = $mount_port; Rquota_Port = $((port + 5));
  NLM_Port = $((port + 6)); Bind_addr = 127.0.0.1; Protocols = 3; Enable_NLM = false; Enable_RQUOTA = false; }
EXPORT { Export_Id = 1; Path = $work/raw; Pseudo = /raw; Access_Type = RW; Squash = No_Root_Squash;
  Protocols = 3; Transports = TCP; SecType = sys; FSAL { Name = VFS; } }
LOG { Default_Log_Level = WARN; }
EOF
ganesha.nfsd -F -f "$work/ganesha.conf" -L "$work/ganesha.log" -p "$work/ganesha.pid" &
pids+=($!)
theirs=("127.0.0.1:$theirs_port" "127.0.0.1:$mount_port" "$work/raw")
for _ in $(seq 100); do (exec 3<>"/dev/tcp/127.0.0.1/$mount_port") 2>/dev/null && break; sleep 0.2; done

rate() { "$perf" "$@" "$seconds" || echo 0; }
"$perf" "${ours[@]}" file fill 1048576 8 0 >/dev/null
"$perf" "${theirs[@]}" file fill 1048576 8 0 >/dev/null

printf '\n%-34s %12s %12s %10s\n' "NFS, cached (operations/s)" millpond ganesha "mp / gan"
for spec in "4K random read, queue 32|random-read|4096|32" "4K random read, queue 1|random-read|4096|1" \
  "64K read, queue 8|read|65536|8" "1M read, queue 8|read|1048576|8" \
  "4K random write, queue 32|random-write|4096|32" "1M write, queue 8|write|1048576|8" \
  "4K write stable, queue 1|sync-write|4096|1" "4K write stable, queue 32|sync-write|4096|32" \
  "getattr, queue 32|getattr|0|32" "lookup, queue 32|lookup|0|32"; do
  IFS='|' read -r name what size queue <<<"$spec"
  a=$(rate "${ours[@]}" file "$what" "$size" "$queue")
  b=$(rate "${theirs[@]}" file "$what" "$size" "$queue")
  printf '%-34s %12s %12s %10s\n' "$name" "$a" "$b" "$(ratio "$a" "$b")"
done
