#how: one disk, ashift=12, all allocations over 20000 bytes in gang blocks: headers of 4096 bytes (dynamic_gang_header), nested ones too, beside some of 512 bytes from before the feature was active
#disks: d0=96M
#zdb: none
#zdbwhy: the zdb of 2.3 lacks the feature; that of 2.4 says what is in "zdb24"
P=gang_wide T1M=400007 MIX=30000
param metaslab_force_ganging 20000; param metaslab_force_ganging_pct 100
zpool create -o ashift=12 $P $D/d0
T1M=150007 populate /$P/a 100 70001; zpool sync $P; zpool sync $P; zpool sync $P
step wide
populate /$P/b 100 5000 70001 200000 300001; zfs snapshot $P@one; churn /$P/b
zfs create -o recordsize=1M -o compression=off $P/big; rnd /$P/big/r 70000; seq 1 300000 > /$P/big/t; zfs create -o copies=2 $P/copies; T1M=150007 populate /$P/copies 100 70001
zfs create -o dedup=on $P/dedup; for i in 1 2; do cp --reflink=never /$P/big/r /$P/dedup/$i; done
echo -n 0123456789abcdef0123456789abcdef > /tmp/k; zfs create -o encryption=on -o keyformat=raw -o keylocation=file:///tmp/k -o recordsize=1M -o compression=off $P/secret; key $P/secret raw "$(od -An -tx1 -v < /tmp/k | tr -d ' \n')"; zfs set keylocation=prompt $P/secret; txt /$P/secret/t 150000
quiesce $P; step export; zpool export $P || die "export $P"
zdb -e -p $D -bcc $P > $OUT/meta/extra_zdb24 2>&1; note "zdb -bcc of 2.4: exit $?"
dump $P
