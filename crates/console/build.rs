//! Writes a table of the files that `npm run build` made in `console/dist`; an empty one where that
//! did not run.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn add(directory: &Path, out: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            add(&path, out)?;
        } else {
            out.push(path);
        }
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo says where we are"));
    let dist = root.join("../../console/dist");
    // An empty directory, so that cargo has something to watch: of one that is not there it would
    // take for granted that it changed, and build all anew each time.
    let _ = fs::create_dir_all(&dist);
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", dist.display());
    let mut files = Vec::new();
    if dist.join("index.html").is_file() {
        add(&dist, &mut files)?;
    }
    files.sort();
    let mut table = String::from("pub(crate) static EMBEDDED: &[(&str, &[u8])] = &[\n");
    for file in &files {
        let path = file.strip_prefix(&dist).expect("a file below it");
        let name = path.to_string_lossy().replace('\\', "/");
        let whole = fs::canonicalize(file)?;
        writeln!(table, "    ({name:?}, include_bytes!({whole:?})),").expect("a string grows");
    }
    table.push_str("];\n");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo says where to write"));
    fs::write(out.join("embedded.rs"), table)
}
