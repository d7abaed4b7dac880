#!/usr/bin/env bash
# The server of 2010 whose owner published how its cache devices got warm, in simulated time: filled
# at 7 MB/s, as OpenZFS did, against as fast as they take it; then after a restart. STORY_FACTOR=1
# tells it whole (hours), 16 by default.
source "$(dirname "$0")/lib.sh"
cargo run -q --release --locked -p sim --example story -- "${STORY_FACTOR:-16}"
