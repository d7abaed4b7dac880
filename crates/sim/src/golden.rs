//! Pools that OpenZFS made, on simulated disks, with encryption roots of all kinds.
//!
//! Workers own datasets below encryption roots and inherit from them. An import claims the intent
//! logs of encrypted datasets before it has their keys; what they say is replayed when their keys
//! are loaded and the datasets opened. So a run may stop in between: the pool is at work without
//! keys for a while, is exported, or loses its power.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use codec::crypt::{WRAPPING_KEY_BYTES, WrappingKey, passphrase_key};
use dataset::{DatasetError, KeyFormat};
use device::sim::{PowerCut, SimWorld};
use filesystem::{Caller, Filesystem};
use format::ObjsetKind;
use parking_lot::Mutex;
use pool::{ImportSpec, Pool};
use volume::Volume;

use crate::model::{State, list};
use crate::rng::Rng;
use crate::torture::{POOL, disk_name, find, host, import, observe_all, simulate};
use crate::verify::Failure;
use crate::work::Book;

/// Bytes of images that are kept or left out together.
const PIECE_BYTES: usize = 4096;

struct Disk {
    size_bytes: u64,
    /// What is not zeros, by offset.
    pieces: Vec<(u64, Vec<u8>)>,
}

struct Key {
    /// The encryption root.
    root: String,
    wrapping: WrappingKey,
}

/// A pool that OpenZFS made, and its keys.
pub struct Golden {
    disks: Vec<Disk>,
    keys: Vec<Key>,
    /// Filesystems that workers may have theirs below, each of another encryption root, or of none.
    parents: Vec<String>,
}

impl std::fmt::Debug for Golden {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let roots: Vec<&str> = self.keys.iter().map(|key| key.root.as_str()).collect();
        write!(out, "Golden({roots:?})")
    }
}

/// A name below the pool's own name, below ours.
fn below(name: &str) -> String {
    match name.split_once('/') {
        Some((_, rest)) => format!("{POOL}/{rest}"),
        None => POOL.to_owned(),
    }
}

fn hex_key(digits: &str) -> Result<WrappingKey, Failure> {
    let mut bytes = [0; WRAPPING_KEY_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair)?, 16)?;
    }
    Ok(WrappingKey::new(bytes))
}

impl Golden {
    /// From images of all its devices, its keys (encryption root, and passphrase or hexadecimal
    /// digits), and the filesystems that may be worked below.
    ///
    /// # Errors
    /// Of reading the images and of importing what is there.
    pub fn load(
        images: &[PathBuf],
        keys: &[(String, String)],
        parents: &[&str],
    ) -> Result<Self, Failure> {
        let mut disks = Vec::new();
        for image in images {
            let content = std::fs::read(image)?;
            let pieces = content.chunks(PIECE_BYTES).enumerate();
            let zeros = [0; PIECE_BYTES];
            disks.push(Disk {
                size_bytes: content.len() as u64,
                pieces: pieces
                    .filter(|(_, piece)| *piece != &zeros[..piece.len()])
                    .map(|(index, piece)| ((index * PIECE_BYTES) as u64, piece.to_vec()))
                    .collect(),
            });
        }
        let mut golden = Golden {
            disks,
            keys: Vec::new(),
            parents: parents.iter().map(|name| below(name)).collect(),
        };
        golden.keys = simulate(golden.derive(keys))?;
        Ok(golden)
    }

    /// Passphrases take long: each is looked at once.
    async fn derive(&self, given: &[(String, String)]) -> Result<Vec<Key>, Failure> {
        let sim = SimWorld::new(0);
        self.attach(&sim, true);
        let mut spec = self.spec(&sim).await?;
        spec.read_only = true;
        let pool = Pool::import(&sim.world(), spec).await?;
        let mut keys = Vec::new();
        for (root, text) in given {
            let root = below(root);
            let info = pool.dsl().keys().info(&root).await?;
            let info = info.ok_or_else(|| format!("{root} is not encrypted"))?;
            let wrapping = match info.format {
                KeyFormat::Passphrase => {
                    passphrase_key(text.as_bytes(), info.salt, info.iterations.try_into()?)
                }
                KeyFormat::Raw | KeyFormat::Hex => hex_key(text)?,
            };
            keys.push(Key { root, wrapping });
        }
        pool.export(false).await?;
        Ok(keys)
    }

    fn attach(&self, sim: &SimWorld, small_sectors: bool) {
        for (number, from) in self.disks.iter().enumerate() {
            let disk = sim.add_disk(&disk_name(number), from.size_bytes);
            disk.set_sector_bytes(if small_sectors { 512 } else { 4096 });
            for (offset, piece) in &from.pieces {
                disk.poke(*offset, piece);
            }
        }
    }

    async fn spec(&self, sim: &SimWorld) -> Result<ImportSpec, Failure> {
        let mut spec = ImportSpec::new(find(sim).await?, host());
        spec.new_name = Some(POOL.into());
        // OpenZFS may have lost its power while it had it.
        spec.force = true;
        Ok(spec)
    }

    /// The pool on new disks, imported as it is: no key is loaded, nothing replayed.
    ///
    /// # Errors
    /// Of importing.
    pub async fn begin_locked(
        &self,
        sim: &SimWorld,
        small_sectors: bool,
    ) -> Result<Arc<Pool>, Failure> {
        self.attach(sim, small_sectors);
        self.import(sim).await
    }

    /// Imports the pool under the name that is used here, which it may not have yet; no key is
    /// loaded.
    ///
    /// # Errors
    /// Of importing.
    pub async fn import(&self, sim: &SimWorld) -> Result<Arc<Pool>, Failure> {
        let spec = self.spec(sim).await?;
        Ok(Pool::import(&sim.world(), spec).await?)
    }

    /// The same with all keys, and all that OpenZFS left in logs replayed.
    ///
    /// # Errors
    /// Of importing and replaying.
    pub async fn begin(&self, sim: &SimWorld, small_sectors: bool) -> Result<Arc<Pool>, Failure> {
        let pool = self.begin_locked(sim, small_sectors).await?;
        self.load_keys(&pool).await?;
        replay_all(sim, &pool).await?;
        pool.sync().await?;
        Ok(pool)
    }

    /// Where so many workers have their datasets; the first one's are encrypted.
    ///
    /// # Panics
    /// When there are not enough parents: a bug in the plan.
    pub fn tops(&self, count: usize, rng: &mut Rng) -> Vec<String> {
        let is_encrypted = |name: &String| self.root_of(name).is_some();
        let (mut left, plain): (Vec<_>, Vec<_>) =
            self.parents.iter().cloned().partition(is_encrypted);
        let mut tops = Vec::new();
        for index in 0..count {
            if index == 1 {
                left.extend(plain.iter().cloned());
            }
            assert!(!left.is_empty(), "as many parents as workers");
            let parent = left.remove(rng.below(left.len() as u64) as usize);
            tops.push(format!("{parent}/w{index}"));
        }
        tops
    }

    /// The encryption root that a dataset has its key from: the nearest above, for nothing here
    /// ends encryption.
    fn root_of(&self, name: &str) -> Option<&Key> {
        let is_above = |key: &&Key| {
            let rest = name.strip_prefix(&key.root);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let above = self.keys.iter().filter(is_above);
        above.max_by_key(|key| key.root.len())
    }

    /// The encryption root of a dataset, and its key.
    pub fn key_of(&self, name: &str) -> Option<(&str, &WrappingKey)> {
        let key = self.root_of(name)?;
        Some((&key.root, &key.wrapping))
    }

    /// Loads all keys.
    ///
    /// # Errors
    /// Of loading.
    pub async fn load_keys(&self, pool: &Pool) -> Result<(), Failure> {
        for key in &self.keys {
            load(pool, key).await?;
        }
        Ok(())
    }

    /// Loads all keys and opens every dataset and snapshot for a moment, so that the pipeline knows
    /// whose key each of them has.
    ///
    /// # Errors
    /// Of opening.
    pub async fn open_all(&self, pool: &Pool) -> Result<(), Failure> {
        self.load_keys(pool).await?;
        let dsl = pool.dsl();
        for (name, snapshots) in list(dsl, POOL).await? {
            dsl.open_dataset(&name).await?;
            for snapshot in snapshots {
                dsl.open_dataset(&format!("{name}@{snapshot}")).await?;
            }
        }
        Ok(())
    }

    /// Imports the pool, loads one key after the other and reads what the workers had, which
    /// replays their logs; now and then the pool does something else in between.
    ///
    /// # Errors
    /// What does not work.
    pub async fn recover(
        &self,
        sim: &SimWorld,
        books: &[(String, Arc<Mutex<Book>>)],
        mut rng: Rng,
    ) -> Result<(Arc<Pool>, Vec<State>), Failure> {
        let pool = import(sim, false)
            .await
            .map_err(|error| format!("import: {error}"))?;
        self.linger(sim, &pool, &mut rng).await?;
        let mut keys: Vec<&Key> = self.keys.iter().collect();
        let mut states: Vec<Option<State>> = books.iter().map(|_| None).collect();
        loop {
            for ((top, book), state) in books.iter().zip(&mut states) {
                let root = self.root_of(top);
                let is_locked =
                    root.is_some_and(|root| keys.iter().any(|key| std::ptr::eq(*key, root)));
                if state.is_none() && !is_locked {
                    *state = Some(observe_all(sim, &pool, top, book).await?);
                }
            }
            if keys.is_empty() {
                break;
            }
            let key = keys.remove(rng.below(keys.len() as u64) as usize);
            load(&pool, key).await?;
            if rng.percent(15) {
                self.linger(sim, &pool, &mut rng).await?;
            }
        }
        Ok((pool, states.into_iter().flatten().collect()))
    }

    /// Imports the pool, which claims the logs, does a little without keys, and leaves the pool or
    /// has the power cut.
    ///
    /// # Errors
    /// What does not work.
    pub async fn visit_without_keys(&self, sim: &SimWorld, mut rng: Rng) -> Result<(), Failure> {
        let pool = import(sim, false)
            .await
            .map_err(|error| format!("import without keys: {error}"))?;
        self.linger(sim, &pool, &mut rng).await?;
        if rng.percent(50) {
            pool.export(false).await?;
        } else {
            sim.power_cut(PowerCut::Random);
            pool.dsl().tasks().close();
        }
        Ok(())
    }

    /// Some of what a pool does of which not all keys are loaded.
    async fn linger(&self, sim: &SimWorld, pool: &Arc<Pool>, rng: &mut Rng) -> Result<(), Failure> {
        for _ in 0..rng.below(4) {
            match rng.below(4) {
                0 => pool.sync().await?,
                1 => {
                    let pause = Duration::from_millis(rng.below(12_000));
                    sim.world().clock.sleep(pause).await;
                }
                2 => self.write_in_the_clear(sim, pool, rng).await?,
                _ => self.try_wrong_keys(pool, rng).await?,
            }
        }
        Ok(())
    }

    /// What the pool's own filesystem gets takes space that must not be what logs have.
    async fn write_in_the_clear(
        &self,
        sim: &SimWorld,
        pool: &Arc<Pool>,
        rng: &mut Rng,
    ) -> Result<(), Failure> {
        let dataset = pool.dsl().open_dataset(POOL).await?;
        let fs = Filesystem::open(dataset, sim.world()).await?;
        let name = format!("scratch{}", rng.below(3)).into_bytes();
        if fs.lookup(fs.root(), &name).await.is_ok() {
            fs.unlink(fs.root(), &name).await?;
        } else {
            let made = fs.create(fs.root(), &name, 0o600, Caller::ROOT).await?;
            let length = rng.below(400 << 10) as usize;
            let content = Bytes::from(rng.content(length));
            fs.write(made.ino, 0, content, false, Caller::ROOT).await?;
            if rng.percent(50) {
                fs.sync_file(made.ino).await?;
            }
        }
        Ok(fs.close().await?)
    }

    async fn try_wrong_keys(&self, pool: &Arc<Pool>, rng: &mut Rng) -> Result<(), Failure> {
        let number = rng.below(self.keys.len() as u64) as usize;
        let Key { root, wrapping } = &self.keys[number];
        let dsl = pool.dsl();
        let info = dsl
            .keys()
            .info(root)
            .await?
            .ok_or("not encrypted any more")?;
        if info.is_loaded {
            return Ok(());
        }
        let opened = dsl.open_dataset(root).await;
        if !matches!(opened, Err(DatasetError::KeyNotLoaded { .. })) {
            return Err(format!("{root} was opened without its key").into());
        }
        let mut wrong = wrapping.clone();
        wrong[0] ^= 1;
        let loaded = dsl.keys().load(root, wrong, false).await;
        if !matches!(loaded, Err(DatasetError::WrongKey { .. })) {
            return Err(format!("a wrong key of {root}: {loaded:?}").into());
        }
        Ok(dsl.keys().load(root, wrapping.clone(), true).await?)
    }
}

async fn load(pool: &Pool, key: &Key) -> Result<(), Failure> {
    let Key { root, wrapping } = key;
    let loaded = pool.dsl().keys().load(root, wrapping.clone(), false).await;
    loaded.map_err(|error| format!("the key of {root}: {error}").into())
}

/// Opens every filesystem and volume, which replays its log.
///
/// # Errors
/// Of opening, and of replaying.
pub async fn replay_all(sim: &SimWorld, pool: &Arc<Pool>) -> Result<(), Failure> {
    let dsl = pool.dsl();
    for name in list(dsl, POOL).await?.into_keys() {
        let dataset = dsl.open_dataset(&name).await?;
        if dataset.objset_kind() == ObjsetKind::Volume {
            Volume::open(dataset, sim.world()).await?.close().await?;
        } else {
            let fs = Filesystem::open(dataset, sim.world()).await?;
            fs.close().await?;
        }
    }
    Ok(())
}
