#how: raidz1 of 3 disks, ashift=12, all allocations over 10000 bytes in gang blocks, with dynamic_gang_header
#disks: d0=64M:raidz1-0 d1=64M:raidz1-0 d2=64M:raidz1-0
#zdb: none
#zdbwhy: the zdb of 2.3 lacks the feature; that of 2.4 says what is in "zdb24"
P=gang_wide_raidz T1M=200007 MIX=30000
param metaslab_force_ganging 10000; param metaslab_force_ganging_pct 100
zpool create -o ashift=12 $P raidz1 $D/d0 $D/d1 $D/d2
rnd /$P/first 200000; zpool sync $P; zpool sync $P; zpool sync $P
populate /$P/a 1 5000 20001 70001 131072 300001; zfs snapshot $P@one; churn /$P/a
zfs create -o recordsize=1M -o compression=off $P/big; rnd /$P/big/r 70000; seq 1 250000 > /$P/big/t
quiesce $P; step export; zpool export $P || die "export $P"
zdb -e -p $D -bcc $P > $OUT/meta/extra_zdb24 2>&1; note "zdb -bcc of 2.4: exit $?"
dump $P
