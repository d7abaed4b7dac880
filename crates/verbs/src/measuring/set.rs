//! The dataset that loads go over: made for them below the one that is named, and destroyed.
//!
//! The server is root, and what datasets hold belongs to others, who could put a symbolic link in
//! its way. So loads use one file on a filesystem of their own, which nobody but the server's user
//! reaches by its mount (it is in the state directory, and shared by nothing), or the file of a
//! volume of their own. Who may receive streams into that filesystem could still replace the file,
//! and who may rename volumes could put another one in its place: so it is found once, and held
//! ([`bench::held`]). A file is made where nothing is, and only on what is mounted.
//!
//! **What a crash leaves.** Before a dataset is made, its name is put on a list in the state
//! directory, with a random word; it is made with the same word in the property
//! `millpond:bench`, in one transaction group. What is on the list and has its word, set
//! on itself, is destroyed at the next start, before the next measurement, and when its pool comes.
//! Nothing else is: permissions let nobody set the property, a stream that brings it does not set
//! it, a list that cannot be read names nothing, and what is on it is believed only where it is a
//! name that is given here. A dataset above may have another name by then; one that was renamed
//! itself is somebody's, and stays.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::{BenchWanted, EventKind, Failure, FailureKind};
use bench::{Held, Place};
use dataset::{DatasetError, PropertySource};
use device::private;
use host::table_file::TableFile;
use parking_lot::Mutex;
use volume::ZvolInit;

use crate::create::{new_filesystem, volume_reservation};
use crate::destroy::{in_order, put_away_and_destroy};
use crate::zfs::{everything, mode};
use service::error::{and_back, from_dataset};
use service::pools::OpenPool;
use serving::Serving;
use serving::iscsi::ISCSI_PROPERTY;
use serving::nfs::NFS_PROPERTY;
use serving::smb::SMB_PROPERTY;

/// The property that says that a dataset was made for a measurement, and for which.
const PROPERTY: &str = "millpond:bench";
/// What its name begins with.
const PREFIX: &str = "millpond-bench-";
/// The file on it.
const DATA: &str = "data";

/// Datasets that may be left of measurements, by name, each with its word.
type Names = Vec<(String, String)>;

/// The list of them.
pub(super) struct Left {
    names: Mutex<Names>,
    file: TableFile,
}

impl Left {
    /// Reads what a server before has left.
    pub(super) fn load(directory: &Path) -> Self {
        let path = directory.join("sets.json");
        let (mut names, file) = TableFile::load::<Names>(path, "datasets of measurements");
        names.retain(|(name, word)| {
            let is_given = is_given(name, word);
            if !is_given {
                tracing::warn!("'{name}' is no name of a measurement's dataset, and is left alone");
            }
            is_given
        });
        Self {
            names: Mutex::new(names),
            file,
        }
    }

    fn change(&self, change: impl FnOnce(&mut Names)) -> Result<(), Failure> {
        let mut names = self.names.lock();
        let mut next = names.clone();
        change(&mut next);
        let written = self.file.write(&next);
        written.map_err(|error| {
            let message = format!("the list of datasets of measurements is not kept: {error}");
            Failure::new(FailureKind::Io, message)
        })?;
        *names = next;
        Ok(())
    }

    fn note(&self, name: &str, word: &str) -> Result<(), Failure> {
        self.change(|names| names.push((name.to_owned(), word.to_owned())))
    }

    fn forget(&self, name: &str) {
        if let Err(failure) = self.change(|names| names.retain(|(other, _)| other != name)) {
            // It is looked for once more, and is not there.
            tracing::warn!("{failure}");
        }
    }

    /// All of them.
    pub(super) fn all(&self) -> Names {
        self.names.lock().clone()
    }
}

/// The last part of the name that goes with a word.
fn own_name(word: &str) -> String {
    format!("{PREFIX}{}", word.get(..8).unwrap_or(word))
}

/// Whether such a name is given with such a word.
fn is_given(name: &str, word: &str) -> bool {
    let is_word = word.len() == 16 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let own = name.rsplit_once('/').map(|(_, own)| own);
    is_word && own.is_some_and(|own| own == own_name(word))
}

/// A dataset for loads.
pub(super) struct Set {
    pub(super) name: String,
    pub(super) word: String,
    /// Where loads go.
    pub(super) place: Place,
    /// What they go over. Its filesystem is not unmounted before this is let go.
    pub(super) held: Held,
}

/// Makes one, of `size_bytes` if it is a volume. A filesystem is mounted at `mountpoint`.
///
/// # Errors
/// It cannot be made, mounted or opened; nothing is left then.
pub(super) async fn make(
    serving: &Serving,
    open: &Arc<OpenPool>,
    left: &Left,
    wanted: &BenchWanted,
    mountpoint: &Path,
    size_bytes: u64,
    block_bytes: u64,
) -> Result<Set, Failure> {
    let word = format!("{:016x}", serving.world.random.next_u64());
    let name = format!("{}/{}", wanted.dataset, own_name(&word));
    let doing = format!("cannot measure '{}'", wanted.dataset);
    let properties = match wanted.is_volume {
        true => of_volume(open, wanted, &word, size_bytes, block_bytes),
        false => of_filesystem(wanted, &word),
    };
    left.note(&name, &word)?;
    let made = async {
        let _admin = open.admin.lock().await;
        let datasets = open.pool.dsl().datasets();
        let made = match wanted.is_volume {
            true => {
                let block_bytes = u32::try_from(block_bytes).unwrap_or(u32::MAX);
                let init = Arc::new(ZvolInit::new(size_bytes, block_bytes));
                datasets.create(&name, &properties, init).await
            }
            false => {
                let init = Arc::new(new_filesystem());
                datasets.create(&name, &properties, init).await
            }
        };
        made.map_err(|error| from_dataset(&doing, &error))?;
        let names = vec![name.clone()];
        serving.events.tell(EventKind::DatasetsCreated { names });
        match wanted.is_volume {
            true => Box::pin(serving.volumes.open_volume(open, &name)).await?,
            false => {
                let at = mountpoint.to_owned();
                let cleared = serve_fuse::aside(move || {
                    serve_fuse::take_away_dead_mounts(&at).map_err(|error| error.to_string())?;
                    private::make_directory(&at).map_err(|error| error.to_string())
                });
                let cleared = cleared.await.map_err(|why| {
                    let message = format!("{doing}: {}: {why}", mountpoint.display());
                    Failure::new(FailureKind::Io, message)
                });
                cleared?;
                Box::pin(serving.mount_at(open, &name, mountpoint, false, &[])).await?;
            }
        }
        match wanted.is_volume {
            true => place(&doing, serving.volumes.file(&name), find_volume).await,
            false => {
                let make = move |path: &Path| make_file(path, size_bytes);
                place(&doing, mountpoint.join(DATA), make).await
            }
        }
    };
    match made.await {
        Ok((place, held)) => Ok(Set {
            name,
            word,
            place,
            held,
        }),
        Err(failure) => {
            let gone = take_away(serving, left, &name, &word).await;
            and_back(Err(failure), gone)
        }
    }
}

/// Where loads go, held. What is served by this process is asked aside.
async fn place(
    doing: &str,
    path: PathBuf,
    find: impl FnOnce(&Path) -> io::Result<Held> + Send + 'static,
) -> Result<(Place, Held), Failure> {
    let failed = |why: String| Failure::new(FailureKind::Io, format!("{doing}: {why}"));
    let Some(text) = path.to_str().map(str::to_owned) else {
        let why = format!("{}: names are in UTF-8", path.display());
        return Err(failed(why));
    };
    let found = serve_fuse::find_aside(move || {
        let held = find(&path)?;
        let is_direct = held.is_direct();
        Ok((OwnedFd::from(held), is_direct))
    });
    let found = found.await;
    let (held, is_direct) = found.map_err(|error| failed(format!("{text}: {error}")))?;
    let place = Place::File {
        path: text,
        is_direct,
    };
    Ok((place, held.into()))
}

/// The file of a volume.
fn find_volume(path: &Path) -> io::Result<Held> {
    let held = Held::find(path)?;
    match held.metadata()?.is_file() {
        true => Ok(held),
        false => Err(io::Error::other("it is not the file of a volume")),
    }
}

/// Makes a file in the root of what is mounted, and nowhere else.
fn make_file(path: &Path, size_bytes: u64) -> io::Result<Held> {
    let root = path.parent().unwrap_or(Path::new("/"));
    let above = Held::find(root.join(".."))?;
    let root = Held::find(root)?;
    // Somebody may have unmounted it meanwhile: then it is a directory of the state directory's.
    if root.metadata()?.dev() == above.metadata()?.dev() {
        return Err(io::Error::other("its filesystem is not mounted any more"));
    }
    let held = Held::make(&root, DATA)?;
    held.set_size(size_bytes)?;
    Ok(held)
}

fn owned(properties: &[(&str, &str)]) -> Vec<(String, String)> {
    let pairs = properties.iter();
    pairs
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// What both kinds have.
fn of_both(wanted: &BenchWanted, word: &str) -> Vec<(String, String)> {
    let mut all = owned(&[(PROPERTY, word), ("readonly", "off")]);
    if let Some(compression) = &wanted.compression {
        all.push(("compression".into(), compression.clone()));
    }
    all
}

fn of_filesystem(wanted: &BenchWanted, word: &str) -> Vec<(String, String)> {
    let mut all = of_both(wanted, word);
    // Nobody mounts it by itself, or anywhere else.
    all.extend(owned(&[
        ("mountpoint", "none"),
        ("canmount", "noauto"),
        ("setuid", "off"),
        ("devices", "off"),
        (NFS_PROPERTY, "off"),
        (SMB_PROPERTY, "off"),
    ]));
    if let Some(bytes) = wanted.block_bytes {
        all.push(("recordsize".into(), bytes.to_string()));
    }
    all
}

fn of_volume(
    open: &OpenPool,
    wanted: &BenchWanted,
    word: &str,
    size_bytes: u64,
    block_bytes: u64,
) -> Vec<(String, String)> {
    let mut all = of_both(wanted, word);
    all.extend(owned(&[
        ("volmode", "default"),
        ("snapdev", "hidden"),
        (ISCSI_PROPERTY, "off"),
    ]));
    let reservation = volume_reservation(open, size_bytes, block_bytes, 1);
    all.push(("volsize".into(), size_bytes.to_string()));
    all.push(("volblocksize".into(), block_bytes.to_string()));
    all.push(("refreservation".into(), reservation.to_string()));
    all
}

/// What there is by the name of a dataset that was made for a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// That dataset.
    Ours,
    /// Another one.
    Other,
    /// Nothing.
    Nothing,
}

async fn find(open: &OpenPool, name: &str, word: &str) -> Result<Found, DatasetError> {
    let dsl = open.pool.dsl();
    match dsl.directories().lookup(name).await {
        Err(DatasetError::NotFound { .. }) => return Ok(Found::Nothing),
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    match dsl.properties().get(name, PROPERTY).await {
        Ok(setting) => {
            let has_word = setting.value.text() == Some(word);
            match setting.source == PropertySource::Local && has_word {
                true => Ok(Found::Ours),
                false => Ok(Found::Other),
            }
        }
        Err(DatasetError::InvalidProperty { .. }) => Ok(Found::Other),
        Err(error) => Err(error),
    }
}

/// The name that a dataset of this word has now, where one above it was renamed.
async fn moved(open: &OpenPool, word: &str) -> Result<Option<String>, DatasetError> {
    let directories = open.pool.dsl().directories();
    let all = directories
        .list(&open.pool.name(), &everything(None))
        .await?;
    for info in all.iter().filter(|info| is_given(&info.name, word)) {
        if find(open, &info.name, word).await? == Found::Ours {
            return Ok(Some(info.name.clone()));
        }
    }
    Ok(None)
}

/// Destroys a dataset that was made for a measurement, with snapshots that somebody took of it.
/// Where its pool is not here it stays on the list.
///
/// # Errors
/// It cannot be destroyed, as somebody uses it, or made something below it or of it.
pub(super) async fn take_away(
    serving: &Serving,
    left: &Left,
    name: &str,
    word: &str,
) -> Result<(), Failure> {
    let Ok(open) = serving.pools.of_dataset(name) else {
        return Ok(());
    };
    let _admin = open.admin.lock().await;
    let doing = format!("cannot destroy '{name}', which was made for a measurement");
    let failed = |error: DatasetError| from_dataset(&doing, &error);
    let noted = name;
    let now = match find(&open, name, word).await.map_err(failed)? {
        Found::Ours => Some(name.to_owned()),
        Found::Nothing => moved(&open, word).await.map_err(failed)?,
        Found::Other => {
            tracing::warn!("'{name}' is not what was made for a measurement, and stays");
            None
        }
    };
    let Some(name) = now.as_deref() else {
        left.forget(noted);
        return Ok(());
    };
    let dsl = open.pool.dsl();
    let listed = dsl.directories().list(name, &everything(None)).await;
    let listed = listed.map_err(failed)?;
    let is_ours = |own: &str| own.split('@').next() == Some(name);
    if let Some(other) = listed.iter().find(|info| !is_ours(&info.name)) {
        let message = format!("{doing}: somebody made '{}' below it", other.name);
        return Err(Failure::new(FailureKind::Busy, message));
    }
    let names = in_order(&listed);
    let mut gone = Ok(());
    // fio has ended; somebody else may be in it, and only root could be.
    for force in [false, true] {
        let destroying = put_away_and_destroy(serving, &open, &names, mode(force), false, None);
        gone = Box::pin(destroying).await;
        if gone.is_ok() {
            break;
        }
    }
    gone.map_err(|failure| Failure::new(failure.kind, format!("{doing}: {failure}")))?;
    left.forget(noted);
    open.background.poke(&open.pool);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the list of what may be left survives a crash, what is on it that no measurement
    /// noted is not believed, and one that cannot be read names nothing and is not replaced.
    #[test]
    fn the_list_of_what_may_be_left_is_on_disk() {
        const WORDS: [&str; 2] = ["0123456789abcdef", "89abcdef01234567"];
        let directory = tempfile::tempdir().expect("a directory");
        let left = Left::load(directory.path());
        let names = WORDS.map(|word| format!("tank/{}", own_name(word)));
        for (name, word) in names.iter().zip(WORDS) {
            left.note(name, word).expect("noted");
        }
        left.note("tank/data", WORDS[0]).expect("noted");
        left.note(&names[0], WORDS[1]).expect("noted");
        left.note("tank/millpond-bench-0", "0").expect("noted");
        let again = Left::load(directory.path());
        let of = |at: usize| (names[at].clone(), WORDS[at].to_owned());
        assert_eq!(again.all(), [of(0), of(1)]);
        again.forget(&names[0]);
        let again = Left::load(directory.path());
        assert_eq!(again.all(), [of(1)]);
        let path = directory.path().join("sets.json");
        std::fs::write(&path, "{").expect("written");
        let damaged = Left::load(directory.path());
        assert!(damaged.all().is_empty());
        assert!(damaged.note("tank/millpond-bench-3", "3").is_err());
        assert_eq!(std::fs::read(&path).expect("read"), b"{");
    }

    /// Goal: the file is made on what is mounted, and not in the directory below, nor where
    /// something is already.
    #[test]
    fn a_file_is_made_only_on_what_is_mounted() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(DATA);
        let told = make_file(&path, 4096).expect_err("nothing is mounted");
        assert!(told.to_string().contains("not mounted"), "{told}");
        assert!(!path.exists());
        std::fs::create_dir(&path).expect("a directory");
        assert!(find_volume(&path).is_err());
    }

    /// Goal: what loads go over is mounted and shared by nothing, whatever it would inherit.
    #[test]
    fn what_loads_go_over_is_nobodys() {
        let wanted = BenchWanted {
            dataset: "tank".into(),
            profile: bench::Profile::Sio,
            is_volume: false,
            block_bytes: Some(16 << 10),
            compression: Some("off".into()),
            size_bytes: None,
            depths: Vec::new(),
            seconds: None,
            warm_up_seconds: None,
            total_seconds: None,
            stream_rate: None,
        };
        let properties = of_filesystem(&wanted, "1234");
        for (name, value) in [
            (PROPERTY, "1234"),
            ("mountpoint", "none"),
            ("canmount", "noauto"),
            ("sharenfs", "off"),
            ("sharesmb", "off"),
            ("compression", "off"),
            ("recordsize", "16384"),
        ] {
            let found = properties.iter().find(|(of, _)| of == name);
            assert_eq!(
                found.map(|(_, value)| value.as_str()),
                Some(value),
                "{name}"
            );
        }
        let checked = dataset::check_new_properties(&properties, dataset::DatasetKind::Filesystem);
        checked.expect("properties of a filesystem");
    }
}
