//! Writes seeds for cargo-fuzz: `cargo run -p fuzzing --example seeds -- fuzz/corpus`, with the
//! golden pools in `MILLPOND_GOLDEN`.

#[path = "../tests/common/mod.rs"]
mod common;

use std::path::Path;

#[tokio::main]
async fn main() {
    let to = std::env::args().nth(1).expect("a directory to write to");
    let golden = oracles::golden().expect("the golden pools in MILLPOND_GOLDEN");
    let mut all = common::extract(&golden).await;
    common::network(&mut all);
    common::texts(&mut all);
    common::log_records(&mut all);
    for (target, seeds) in all {
        let dir = Path::new(&to).join(target);
        std::fs::create_dir_all(&dir).expect("a directory");
        for (number, seed) in seeds.iter().enumerate() {
            std::fs::write(dir.join(format!("golden-{number}")), seed).expect("write");
        }
    }
}
