#how: a mirror with all features of 2.4: cloned blocks (block_cloning_endian), files rewritten with and without -P below snapshots (physical_rewrite), default quotas
#disks: d0=96M:mirror-0 d1=96M:mirror-0
#zdb: none
#zdbwhy: the zdb of 2.3 lacks the features; that of 2.4 says what is in "zdb24"
P=rewritten T1M=400007 MIX=30000
param zfs_bclone_enabled 1
zpool create -o ashift=12 $P mirror $D/d0 $D/d1; zfs create $P/a; zfs create $P/b; zfs create -o compression=off $P/c
c="cp --reflink=always" x="cp --sparse=never" # x: between datasets copy_file_range clones
step clones
rnd /$P/a/r 300000; txt /$P/a/t 700000; populate /$P/a/p 100 5000 70000 150000; zpool sync $P
for i in 1 2 3; do run $c /$P/a/r /$P/a/r$i; done; run $x /$P/a/t /$P/b/t; run $x /$P/a/t /$P/c/t; zpool sync $P
zfs snapshot -r $P@one; rm /$P/a/r; at /$P/a/r1 200000 100000; tat /$P/b/t 0 5000; rm /$P/a/r2; zpool sync $P; zfs destroy -r $P@one
step rewrite
zfs create -o compression=off $P/w; populate /$P/w/physical 5000 70000 150000 300001; cp -a /$P/w/physical /$P/w/logical; cp -a /$P/w/physical /$P/w/part; zpool sync $P
zfs snapshot $P/w@before; zfs set compression=lz4 $P/w; zfs set checksum=sha256 $P/w; zpool sync $P
run zfs rewrite -P -r /$P/w/physical; run zfs rewrite -r /$P/w/logical; run zfs rewrite -P -o 131072 -l 200000 /$P/w/part/t1m; run zfs rewrite -P -r /$P/b; zpool sync $P
zfs snapshot $P/w@after; tat /$P/w/physical/t1m 200000 5000
note "written of $P/w@after: $(zfs get -Hpo value written $P/w@after)"
step quotas
zfs create $P/q; m=/$P/q; chmod 777 $m
zfs set defaultuserquota=5M defaultgroupquota=6M defaultprojectquota=7M defaultuserobjquota=100 defaultgroupobjquota=110 defaultprojectobjquota=120 userquota@bob=2M $P/q
for i in 1 2 3; do txt $m/a$i 30000; chown alice:alice $m/a$i; txt $m/b$i 20000; chown bob:bob $m/b$i; done
note "default quotas of $P/q: $(zfs get -Hpo value defaultuserquota,defaultgroupquota,defaultprojectquota,defaultuserobjquota,defaultgroupobjquota,defaultprojectobjquota $P/q | tr '\n' ' ')"
zpool get -H bcloneused,bclonesaved,bcloneratio $P > $OUT/meta/extra_bclone
SPACE="$P/q"; quiesce $P; step export; zpool export $P || die "export $P"
zdb -e -p $D -bcc $P > $OUT/meta/extra_zdb24 2>&1; note "zdb -bcc of 2.4: exit $?"
dump $P
