//! Files whose content is a seed, and what a directory holds of them after a kill.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use sim::rng::Rng;

/// Files of a filesystem or snapshot: the seed of each one's content.
pub type Files = BTreeMap<String, u64>;

/// What a directory holds.
pub type Found = BTreeMap<String, Vec<u8>>;

/// Content that a seed stands for.
pub fn content(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let length = match rng.below(3) {
        0 => rng.below(400),
        1 => rng.below(20_000),
        _ => rng.below(300_000),
    };
    rng.content(length as usize)
}

/// Writes a file, and fsyncs it.
pub fn write(path: &Path, seed: u64) -> io::Result<()> {
    let data = content(seed);
    let file = File::create(path)?;
    file.write_all_at(&data, 0)?;
    file.sync_all()
}

/// Removes a file, and fsyncs its directory.
pub fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    File::open(path.parent().expect("a directory"))?.sync_all()
}

/// Whether these files were found; the error says what is wrong.
pub fn same(files: &Files, found: &Found) -> Result<(), String> {
    for (name, seed) in files {
        match found.get(name) {
            Some(data) if *data == content(*seed) => {}
            Some(data) => {
                let right = content(*seed);
                return Err(format!(
                    "{name}: {} bytes for {}, or others",
                    data.len(),
                    right.len()
                ));
            }
            None => return Err(format!("{name} is not there")),
        }
    }
    match found.keys().find(|name| !files.contains_key(*name)) {
        Some(name) => Err(format!("{name} should not be there")),
        None => Ok(()),
    }
}

/// All files of a directory.
pub fn read(directory: &Path) -> io::Result<Found> {
    let mut out = Found::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_file() {
            let data = fs::read(entry.path());
            let data = data.map_err(|error| io::Error::other(format!("{name}: {error}")))?;
            out.insert(name, data);
        }
    }
    Ok(out)
}

/// What may have become of a filesystem's files by what was under way at a kill.
#[derive(Debug, Clone, Copy)]
pub struct Next<'a> {
    pub files: &'a Files,
    /// All of them at once, or one by one.
    pub is_at_once: bool,
}

/// Which of the two states that it may be in a filesystem is in. A file that was being written may
/// be anything; it is removed.
pub fn settle(
    directory: &Path,
    found: &Found,
    files: &Files,
    next: Option<Next<'_>>,
) -> Result<Files, String> {
    let Err(mut why) = same(files, found) else {
        return Ok(files.clone());
    };
    let Some(Next {
        files: next,
        is_at_once,
    }) = next
    else {
        return Err(why);
    };
    match same(next, found) {
        Ok(()) => return Ok(next.clone()),
        Err(error) => why.push_str(&format!("; {error}")),
    }
    if is_at_once {
        return Err(format!("it is between two states: {why}"));
    }
    let differs = |name: &&String| files.get(*name) != next.get(*name);
    let mut changed: Vec<String> = files.keys().filter(differs).cloned().collect();
    changed.extend(next.keys().filter(differs).cloned());
    let (mut files, mut found) = (files.clone(), found.clone());
    for name in &changed {
        files.remove(name);
        found.remove(name);
    }
    same(&files, &found).map_err(|_| why)?;
    for name in changed {
        match remove(&directory.join(&name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(format!("{name}: {error}"));
            }
            _ => {}
        }
    }
    Ok(files)
}
