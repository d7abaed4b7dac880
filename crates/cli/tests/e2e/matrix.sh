#!/usr/bin/env bash
# What the matrix does to filesystems and how it looks at them: the same script here and on the machine with the real
# OpenZFS.
#   matrix.sh work DIR SEED COUNT [LARGE]   changes what is in DIR: COUNT small files, one of LARGE bytes, and what else people do
#   matrix.sh fill DIR SEED                 fills it to the last block, then makes room again
#   matrix.sh survey DIR                    prints all that can be seen of DIR, in an order that depends on names only
set -euo pipefail
export LC_ALL=C

random() { head -c "$1" /dev/urandom; }
text() { yes "line $RANDOM of a text that compresses well, $RANDOM" | head -c "$1" || true; }

work() {
  cd "$1"; RANDOM=$2; local count=$3 large=${4:-0} here="round$2" i file
  mkdir -p "$here/deep/er/still"
  # Small files, a part of which is removed, cut, extended or renamed at once.
  for ((i = 0; i < count; i++)); do
    file=$here/f$i
    if ((i % 3)); then random $((RANDOM * (i % 7) / 4)) >"$file"; else text $((RANDOM * (i % 5))) >"$file"; fi
    case $((RANDOM % 9)) in
      0) rm "$file" ;;
      1) truncate -s $((RANDOM / 2)) "$file" ;;
      2) random 777 >>"$file" ;;
      3) mv "$file" "$here/deep/renamed$i" ;;
      4) ln "$file" "$here/deep/er/link$i"; chmod 0640 "$file" ;;
      5) setfattr -n user.number -v "$RANDOM" "$file" 2>/dev/null || true; chown 1000:1001 "$file" ;;
    esac
  done
  ln -s ../f1 "$here/deep/symbolic"
  mkfifo "$here/deep/er/fifo"
  setfattr -n user.long -v "$(random 3000 | od -An -tx1 | tr -d ' \n')" "$here/deep" 2>/dev/null || true
  setfacl -m u:1000:rwx -d -m g:1001:rx "$here/deep/er" 2>/dev/null || true
  echo inherits >"$here/deep/er/below"
  # A big file, sparse, then written over in pieces that fit no record.
  random $((count * 40000)) >"$here/big"
  for ((i = 0; i < 12; i++)); do
    random $((RANDOM + 1)) | dd of="$here/big" bs=64k seek=$(((RANDOM * 37 % (count * 40000)))) oflag=seek_bytes conv=notrunc status=none
  done
  dd if="$here/big" of="$here/sparse" bs=10000 count=3 seek=$((RANDOM % 5000)) conv=notrunc status=none
  truncate -s $((count * 20011)) "$here/big"
  fallocate -p -o 12345 -l 250000 "$here/big" 2>/dev/null || true
  head -c 100000 /dev/zero >"$here/zeroes"
  if ((large)); then
    text "$large" >"$here/large"
    random 70000 | dd of="$here/large" bs=64k seek=$((large * 3 / 5)) oflag=seek_bytes conv=notrunc status=none
  fi
  # What the rounds before left: a third goes, a third is changed.
  find . -path "./$here" -prune -o -type f -name 'f*' -print | sort | awk 'NR % 3 == 0' | tr '\n' '\0' | xargs -0 -r rm -f
  find . -path "./$here" -prune -o -type f -name 'f*' -print | sort | awk -v most="$count" 'NR % 3 == 1 && n++ < most' | while read -r file; do
    text 5000 | dd of="$file" bs=1k seek=$((RANDOM % 20)) conv=notrunc status=none
  done
  sync -f .
}

# Writes files of all sizes until there is no space, then over what is there; a third goes again, from a full pool.
fill() {
  cd "$1"; RANDOM=$2; local here="full$2" i=0 errors
  mkdir -p "$here"
  errors=$(mktemp)
  while random $((RANDOM * (i % 9 + 1) * 4)) 2>>"$errors" >"$here/f$i"; do i=$((i + 1)); done
  # Not for want of anything else. (The second is all that busybox's head says.)
  grep -q 'No space left\|standard output: I/O error' "$errors" || { cat "$errors"; return 1; }
  : >"$errors"
  for file in "$here"/f*3; do random 150000 2>>"$errors" | dd of="$file" conv=notrunc status=none 2>>"$errors" || true; done
  if grep -v 'No space left\|Broken pipe\|standard output: I/O error' "$errors"; then return 1; fi
  rm "$errors"
  find "$here" -type f | sort | awk 'NR % 3 == 0' | tr '\n' '\0' | xargs -0 rm -f
}

# What is in a filesystem; not in its `.zfs`, which is there with snapdir=visible and has times of its own on each system.
survey() {
  cd "$1"
  find . -xdev -path ./.zfs -prune -o -printf '%P\t%y\t%m\t%U\t%G\t%n\t%s\t%T@\t%l\n' | sort
  find . -xdev -path ./.zfs -prune -o -type f -size -256M -print0 | sort -z | xargs -0 -r sha256sum
  find . -xdev -path ./.zfs -prune -o \( -type f -o -type d \) -print0 | sort -z | xargs -0 -r getfattr --no-dereference -d -m - -e hex 2>/dev/null || true
}

"$@"
