#!/bin/busybox sh
# The first process of the peer, in place of the one in its image (crates/oracles/src/peer).
# As far as READY it does what every script needs and no disk; there the machine is saved. Each
# machine that begins from there is told the time, the number of its disks and whether it has a
# network, and runs the script.
/bin/busybox --install -s /bin 2>/dev/null
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts; mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp; mount -t tmpfs tmpfs /run
ln -sf /proc/self/fd /dev/fd; ln -sf /proc/mounts /etc/mtab
load() { for m in "$@"; do modprobe "$m" 2>/dev/null; done; }
load virtio_pci virtio_blk virtio_scsi virtio_rng virtio_net dm-mod dm-multipath loop zfs
load iscsi_tcp sd_mod sg nfs nfsv3 nfsv4 cifs nbd nvme-tcp
ip link set lo up
mkdir -p /run/lock/iscsi /var/lib/iscsi /var/lock/iscsi /dev/disk/peer /dev/mapper /peer
stty -F /dev/ttyS0 -echo
exec </dev/ttyS0
# With where the seeds of the spl module's random numbers are (seeds.rs).
address() { sed -n "s/^\([0-9a-f]*\) . $1\b.*/\1/p" /proc/kallsyms; }
echo "PEER-READY $(address spl_pseudo_entropy) $(address __per_cpu_offset)"
read -r now disks network
date -s "@$now" >/dev/null
exec </dev/null

# Two machines that begin at one state must not draw the same random numbers.
reseed || { echo PEER-END rc=98; poweroff -f; }
if [ "$network" = 1 ]; then
  ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2
  iscsid 2>/dev/null
fi
tries=0
until [ "$(ls -d /sys/block/vd* 2>/dev/null | wc -l)" -ge "$disks" ]; do
  tries=$((tries + 1)); [ $tries -lt 1000 ] || { echo PEER-END rc=99; poweroff -f; }
  usleep 20000
done
for d in /sys/block/vd*; do
  n=${d##*/}; s=$(cat "$d/serial" 2>/dev/null)
  case $s in
    peer-*) ln -sf "/dev/$n" "/dev/disk/peer/$s" ;;
    # A loop device: zpool writes no partition table on it.
    ?*) l=$(losetup -f); losetup "$l" "/dev/$n" && ln -sf "$l" "/dev/disk/peer/$s" ;;
  esac
done
tar -xf /dev/disk/peer/peer-in -C /peer
cd /peer
echo PEER-BEGIN
bash /peer/.script 2>&1
echo "PEER-END rc=$?"
if [ -e /dev/disk/peer/peer-out ] && [ -d /peer/out ]; then
  tar -cf /dev/disk/peer/peer-out -C /peer/out .
fi
sync
poweroff -f
