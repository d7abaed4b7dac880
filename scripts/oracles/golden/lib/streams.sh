# Sourced by make-golden for a recipe with #stream: yes. The recipe runs with throw-away
# overlays of pools made before (#from: NAMES) and a scratch pool, makes streams with
# `zfs send`, receives each with `zfs receive` and dumps what came of it.
make_streams() { # NAME WORKDIR
  local n=$1 w=$2 p f s disks=(); mkdir -p "$w/in" "$w/out" "$w/src" "$out/$n"
  seed_content "$n" "$w/in"
  cp -a "$recipes"/*.d "$w/in/"
  for p in $(head_of "$n" from); do
    zstd -dcq --long=27 "$out/$p.tar.zst" | tar -x -C "$w/src"
    for f in "$w/src/$p"/*.img; do disks+=(-r "$f,$p-$(basename "$f" .img)"); done
    python3 -c 'import json,sys; [print(*x.values(), sep="\t") for x in json.load(open(sys.argv[1])).get("keys", [])]' "$out/$p.json" >> "$w/in/keys"
  done
  truncate -s 512M "$w/src/scratch.img"; disks+=(-d "$w/src/scratch.img,scratch")
  cat "$here/lib/guest.sh" "$here/lib/guest-streams.sh" "$recipes/$n.sh" > "$w/script.sh"
  for i in 1 2 3; do
    rm -rf "$w/out"; mkdir "$w/out"
    "$peer" -q -t $((560 * ${GOLDEN_SLOW:-1})) "${disks[@]}" -i "$w/in" -o "$w/out" "$w/script.sh" > "$w/log" && break; echo "$n: try $i failed"; tail -n 5 "$w/log"
  done
  grep -E 'GOLDEN-|cannot|failed to|error|Error|invalid' "$w/log" | grep -v 'step ' | head -40 || true
  for p in "$w"/out/s/*/; do
    s=$(basename "$p")
    zstream dump < "$p/stream" > "$p/dump" 2>&1 || true
    python3 "$here/lib/assemble-stream.py" "$s" "$p" "$out/$n/$s.json"
    zstd -19 --long=27 -q -f "$p/stream" -o "$out/$n/$s.zstream.zst"
    echo "$n/$s: $(stat -c %s "$out/$n/$s.zstream.zst") bytes"
  done
}
