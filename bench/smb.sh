#!/usr/bin/env bash
# Files by SMB: a share of a pool against the same Samba on a raw directory, same client (smbclient),
# one run. Prints ratios. Debian: samba, samba-vfs-modules, smbclient; root.
. "$(dirname "$0")/lib.sh"
rounds=${BENCH_ROUNDS:-3}
mkdir -p "$work/disks" "$work/raw" "$work/mnt" "$work/small" "$work/samba" "$work/back"
chmod 755 "$work"; chmod 777 "$work/raw"
truncate -s 6G "$work/disks/millpond"
smb_port=$((port + 2)) raw_port=$((port + 3))
start_millpond --smb "127.0.0.1:$smb_port"
"$millpond" zpool create -o ashift=12 -O compression=off -O atime=off -m "$work/mnt" bench "$work/disks/millpond"
chmod 777 "$work/mnt"
"$millpond" zfs set sharesmb=name=bench,guest bench

cat >"$work/samba/smb.conf" <<EOF
[global]
  private dir = $work/samba
  lock directory = $work/samba
  state directory = $work/samba
  cache directory = $work/samba
  pid directory = $work/samba
  ncalrpc dir = $work/samba/ncalrpc
  log file = $work/samba/log
  interfaces = 127.0.0.1/8
  bind interfaces only = yes
  smb ports = $raw_port
  disable netbios = yes
  map to guest = bad user
  load printers = no
  disable spoolss = yes
[bench]
  path = $work/raw
  guest ok = yes
  read only = no
EOF
smbd -F --no-process-group -s "$work/samba/smb.conf" </dev/null >"$work/samba/out" 2>&1 &
pids+=($!)
for p in "$smb_port" "$raw_port"; do
  for _ in $(seq 100); do (exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null && break; sleep 0.2; done
done

dd if=/dev/urandom of="$work/big" bs=1M count=512 status=none
for n in $(seq 400); do head -c 16384 /dev/urandom >"$work/small/f$n"; done

# seconds PORT COMMANDS: how long a client takes for them.
seconds() {
  local begin end
  begin=$(date +%s.%N)
  smbclient //127.0.0.1/bench -N -p "$1" -c "$2" >>"$work/client.log" 2>&1 || { tail -n 5 "$work/client.log" >&2; exit 1; }
  end=$(date +%s.%N)
  awk -v a="$begin" -v b="$end" 'BEGIN { print b - a }'
}
# best PORT COMMANDS BEFORE: the shortest of some rounds, each after BEFORE.
best() {
  local n all=()
  for n in $(seq "$rounds"); do
    [[ -z $3 ]] || seconds "$1" "$3" >/dev/null
    all+=("$(seconds "$1" "$2")")
  done
  printf '%s\n' "${all[@]}" | sort -n | head -n 1
}

printf '\n%-34s %12s %12s %10s\n' "SMB (seconds)" millpond raw "raw / mp"
while IFS='|' read -r name commands before; do
  a=$(best "$smb_port" "$commands" "$before")
  b=$(best "$raw_port" "$commands" "$before")
  printf '%-34s %12.2f %12.2f %10s\n' "$name" "$a" "$b" "$(ratio "$b" "$a")"
done <<EOF
write 512M|put $work/big big|
read 512M, cached|get big /dev/null|
write 400 files of 16K|lcd $work/small; prompt off; mput f*|
read 400 files of 16K|lcd $work/back; prompt off; mget f*|
list 400 files|ls; ls; ls; ls; ls; ls; ls; ls|
remove 400 files|deltree d|mkdir d; cd d; lcd $work/small; prompt off; mput f*
EOF
