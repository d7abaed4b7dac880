# Shared by the benchmarks: a working directory, a Millpond server, clean-up, ratios.
set -euo pipefail
: "${CARGO_TARGET_DIR:=${XDG_CACHE_HOME:-$HOME/.cache}/millpond/target}"
millpond=$CARGO_TARGET_DIR/release/millpond
zfs_fuse=${XDG_CACHE_HOME:-$HOME/.cache}/millpond/zfs-fuse
work=$(mktemp -d "${BENCH_DIR:-/var/tmp}/millpond-bench.XXXXXX")
export MILLPOND_STATE=$work/state
port=$((20000 + RANDOM % 20000))
pids=()

finish() {
  "$millpond" down >/dev/null 2>&1 || true
  for pid in ${pids[@]+"${pids[@]}"}; do kill "$pid" 2>/dev/null || true; done
  for m in $(awk -v w="$work" 'index($2, w) == 1 {print $2}' /proc/self/mounts | sort -r); do umount -l "$m" 2>/dev/null || true; done
  sleep 0.5
  # tgtd goes on while it has targets.
  for pid in ${pids[@]+"${pids[@]}"}; do kill -9 "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap finish EXIT

# start_millpond OPTION...: a server of its own.
start_millpond() {
  "$millpond" daemon --iscsi "127.0.0.1:$port" "$@" >"$work/server.log" 2>&1 &
  pids+=($!)
  for _ in $(seq 100); do "$millpond" info 2>/dev/null | grep -q 'runs as' && return; sleep 0.1; done
  echo "the server does not start:" >&2; cat "$work/server.log" >&2; exit 1
}

# ratio A B: A/B with two digits, or '-'.
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { if (b + 0 > 0) printf "%.2f", a / b; else printf "-" }'; }

# zfs-fuse's libraries are for its own programs only.
old() { LD_LIBRARY_PATH=$(dirname "$(find "$zfs_fuse" -name libfuse.so.2 | head -n 1)") exec "$@"; }
zpool_old() { (old "$zfs_fuse/sbin/zpool" "$@"); }
zfs_old() { (old "$zfs_fuse/sbin/zfs" "$@"); }
# A name of this run's own: zfs-fuse remembers the pools of a run that was stopped.
old_pool=zfbench$$
start_zfs_fuse() {
  (cd / && old "$zfs_fuse/sbin/zfs-fuse" --no-daemon >"$work/zfs-fuse.log" 2>&1) &
  pids+=($!)
  sleep 2
}

# hold_disks COUNT BYTES RATE:OPERATIONS: loop devices in `loops`, held to so many MB/s and
# operations a second (0:0 does not hold them), so that the machine's own storage, which others use
# too, does not decide. They are gone in the end.
loops=()
held=/sys/fs/cgroup/blkio/millpond-bench-$$
drop_disks() {
  finish
  for loop in ${loops[@]+"${loops[@]}"}; do losetup -d "$loop" || true; done
  echo $$ >/sys/fs/cgroup/blkio/cgroup.procs 2>/dev/null || true
  rmdir "$held" 2>/dev/null || true
}
hold_disks() {
  local count=$1 bytes=$2 disk=$3 number way name loop
  trap drop_disks EXIT
  mkdir -p "$work/disks"
  for name in $(seq "$count"); do
    # What is not allocated yet would be as slow as the filesystem below when it is written first.
    fallocate -l "$bytes" "$work/disks/$name"
    loops+=("$(losetup --show -f --direct-io=on "$work/disks/$name")")
  done
  [ "${disk%:*}" != 0 ] || return 0
  mkdir "$held" || {
    echo "disks cannot be held: there is no blkio of cgroup v1; BENCH_DISK=0:0 leaves them" >&2
    exit 1
  }
  for loop in "${loops[@]}"; do
    number=$(printf '%d:%d' "0x$(stat -c %t "$loop")" "0x$(stat -c %T "$loop")")
    for way in read write; do
      echo "$number $((${disk%:*} * 1000000))" >"$held/blkio.throttle.${way}_bps_device"
      echo "$number ${disk#*:}" >"$held/blkio.throttle.${way}_iops_device"
    done
  done
  echo $$ >"$held/cgroup.procs"
}
