//! System attributes: attributes packed into bonus and spill block (module/zfs/sa.c).
//!
//! What an attribute's number means is in the ZAP `REGISTRY`, which attributes stand in which order
//! ("layout") in the ZAP `LAYOUTS`, both under the SA master object. A buffer names its layout. An
//! attribute of known length is changed in place; anything else writes all attributes anew, by a
//! layout that exists or is made. What does not fit the bonus goes to the spill block.
//!
//! Old znodes (bonus type ZNODE) are read and changed in place as the fixed layout 0.
//!
//! # Locks
//! `state` is a short lock over registry and layouts in memory, which all changes of files read and
//! hardly any write; it may be taken under an object's own. `growing`, held across awaits, lets one
//! task at a time add to them. Whoever sets attributes of one object must not do so twice at the
//! same time: reading, changing and writing the bonus is not one step (the ZPL's lock per inode).
//!
//! # Crash
//! A layout is in the same txg as the first object that uses it, or an earlier one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use format::{
    BLOCK_POINTER_BYTES, Endian, ObjectId, ObjectType, ObjsetKind, SA_FIRST_LAYOUT, SaByteswap,
    SaHeader, encode_sa, max_bonus_bytes,
};
use parking_lot::RwLock;
use zio::Tx;

use crate::byteswap::swap_words;
use crate::error::{ObjectError, OfObject, Result, damaged};
use crate::object::{BonusAndSpill, Object, change_bonus};
use crate::objset::ObjectSet;
use crate::zap::{Zap, ZapOptions, ZapValue};

const REGISTRY: &str = "REGISTRY";
const LAYOUTS: &str = "LAYOUTS";
/// Layout of old znodes.
const LEGACY_LAYOUT: u16 = 0;
/// Largest spill block.
const SPILL_MAX_BYTES: usize = 128 << 10;
/// Layout numbers have ten bits.
const LAYOUTS_MAX: u16 = 1 << 10;

/// Attributes of old znodes, in their order, which is also their number (`sa_legacy_attrs`).
const LEGACY: [SaRegistration; 16] = [
    legacy("ZPL_ATIME", 16, 0),
    legacy("ZPL_MTIME", 16, 0),
    legacy("ZPL_CTIME", 16, 0),
    legacy("ZPL_CRTIME", 16, 0),
    legacy("ZPL_GEN", 8, 0),
    legacy("ZPL_MODE", 8, 0),
    legacy("ZPL_SIZE", 8, 0),
    legacy("ZPL_PARENT", 8, 0),
    legacy("ZPL_LINKS", 8, 0),
    legacy("ZPL_XATTR", 8, 0),
    legacy("ZPL_RDEV", 8, 0),
    legacy("ZPL_FLAGS", 8, 0),
    legacy("ZPL_UID", 8, 0),
    legacy("ZPL_GID", 8, 0),
    legacy("ZPL_PAD", 32, 0),
    legacy("ZPL_ZNODE_ACL", 88, 3),
];

const fn legacy(name: &'static str, length_bytes: u16, byteswap: u8) -> SaRegistration {
    SaRegistration {
        name,
        length_bytes,
        byteswap,
    }
}

/// Number of an attribute in its object set's registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttributeId(pub u16);

/// An attribute that the user of [`Sa`] knows: index into the table given to [`Sa::setup`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SaAttribute(pub u16);

/// The value of an attribute of up to 16 bytes, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaFixed {
    bytes: [u8; 16],
    length: u8,
}

impl SaFixed {
    /// One number.
    pub fn number(value: u64) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&value.to_le_bytes());
        SaFixed { bytes, length: 8 }
    }

    /// Two numbers.
    pub fn pair(first: u64, second: u64) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..].copy_from_slice(&second.to_le_bytes());
        SaFixed { bytes, length: 16 }
    }

    /// The value's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// What an attribute is (`sa_attr_reg_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SaRegistration {
    /// Its name in the registry, such as `ZPL_MODE`.
    pub name: &'static str,
    /// Its length in bytes; 0 when variable.
    pub length_bytes: u16,
    /// How its bytes are swapped (`sa_bswap_type_t`): 0 u64 array, 1 u32, 2 u16, 3 u8, 4 ACL.
    pub byteswap: u8,
}

/// A registered attribute.
#[derive(Debug, Clone)]
struct Registered {
    name: String,
    length_bytes: u16,
    byteswap: SaByteswap,
    /// Whether the registry on disk has it.
    on_disk: bool,
}

#[derive(Default)]
struct State {
    /// By number.
    attributes: Vec<Option<Registered>>,
    /// Number of each attribute of the user's table.
    numbers: Vec<u16>,
    layouts: BTreeMap<u16, Arc<[u16]>>,
    by_content: HashMap<Arc<[u16]>, u16>,
    all_registered: bool,
}

impl State {
    fn length_of(&self, number: u16) -> Option<u16> {
        let attribute = self.attributes.get(usize::from(number))?;
        attribute.as_ref().map(|attribute| attribute.length_bytes)
    }

    fn number(&self, object: &Object, attribute: SaAttribute) -> Result<u16> {
        let found = self.numbers.get(usize::from(attribute.0)).copied();
        found.ok_or(ObjectError::Misuse {
            object: object.id(),
            what: "an attribute that is not in the table given to Sa::setup",
        })
    }

    fn byteswap_of(&self, number: u16) -> SaByteswap {
        self.attributes
            .get(usize::from(number))
            .and_then(Option::as_ref)
            .map_or(SaByteswap::Uint8, |attribute| attribute.byteswap)
    }

    fn add_layout(&mut self, number: u16, layout: Arc<[u16]>) {
        if number >= SA_FIRST_LAYOUT {
            self.by_content.entry(layout.clone()).or_insert(number);
        }
        self.layouts.insert(number, layout);
    }

    /// The number that the next layout gets: OpenZFS counts the ones it knows, 0 and 1 included.
    fn next_layout(&self) -> u16 {
        let count = self.layouts.range(SA_FIRST_LAYOUT..).count() as u16 + SA_FIRST_LAYOUT;
        let after_last = self
            .layouts
            .keys()
            .next_back()
            .map_or(SA_FIRST_LAYOUT, |last| last + 1);
        count.max(after_last)
    }

    fn put(&mut self, number: u16, attribute: Registered) {
        let at = usize::from(number);
        if self.attributes.len() <= at {
            self.attributes.resize(at + 1, None);
        }
        if self.attributes[at].is_none() {
            self.attributes[at] = Some(attribute);
        }
    }
}

/// The attributes of one object set: registry and layouts.
pub struct Sa {
    objset: Arc<ObjectSet>,
    master: ObjectId,
    state: RwLock<State>,
    growing: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Sa {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Sa({:?}, master {})", self.objset, self.master)
    }
}

/// One attribute of an object with its place in the order of all.
#[derive(Debug, Clone, Copy)]
struct Value<'a> {
    number: u16,
    data: &'a [u8],
}

/// An attribute that is changed where it is.
#[derive(Debug, Clone, Copy)]
struct InPlace {
    number: u16,
    value: SaFixed,
    /// Where in the bonus, once it is found there.
    start: Option<usize>,
}

/// So many attributes are changed in place at once.
const IN_PLACE_MAX: usize = 12;

/// One buffer (bonus or spill block), located.
struct Buffer {
    endian: Endian,
    bytes: Bytes,
    places: Vec<(u16, std::ops::Range<usize>)>,
}

impl Sa {
    /// Opens the registry and layouts under the SA master object (0: the object set has none, all
    /// bonuses are old znodes), for a user who knows `table`. Attributes missing from the registry
    /// are added when first written.
    ///
    /// # Errors
    /// Errors of reading; damage of the ZAPs.
    pub async fn setup(
        objset: &Arc<ObjectSet>,
        master: ObjectId,
        table: &'static [SaRegistration],
    ) -> Result<Arc<Self>> {
        let mut state = State::default();
        let (mut registry, mut layouts) = (None, None);
        if !master.is_zero() {
            let zap = Zap::hold(objset, master).await?;
            registry = zap.lookup_u64(REGISTRY).await?;
            layouts = zap.lookup_u64(LAYOUTS).await?;
        }
        let mut registered = 0;
        if let Some(id) = registry {
            for entry in Zap::hold(objset, ObjectId::new(id)).await?.all().await? {
                let word = entry.value.as_u64().ok_or_else(|| {
                    damaged(
                        ObjectId::new(id),
                        "sa registry",
                        "an entry is no 64-bit integer",
                    )
                })?;
                let found = format::SaRegistration::decode(word);
                registered += 1;
                state.put(
                    found.number,
                    Registered {
                        name: entry.name_str().into_owned(),
                        length_bytes: found.length_bytes,
                        byteswap: found.byteswap,
                        on_disk: true,
                    },
                );
            }
        }
        let in_memory = |entry: &SaRegistration| Registered {
            name: entry.name.to_owned(),
            length_bytes: entry.length_bytes,
            byteswap: SaByteswap::from_code(entry.byteswap),
            on_disk: false,
        };
        // New numbers follow the count of registered ones, as OpenZFS gives them.
        let mut next = registered;
        if objset.kind() == ObjsetKind::Filesystem {
            if next == 0 {
                next = LEGACY.len();
            }
            for (number, entry) in LEGACY.iter().enumerate() {
                state.put(number as u16, in_memory(entry));
            }
            let all: Vec<u16> = (0..LEGACY.len() as u16).collect();
            state.add_layout(LEGACY_LAYOUT, all.into());
        }
        next = next.max(state.attributes.len());
        for entry in table {
            let known = state
                .attributes
                .iter()
                .position(|known| known.as_ref().is_some_and(|known| known.name == entry.name));
            let number = match known {
                Some(number) => number as u16,
                None => {
                    let number = next as u16;
                    next += 1;
                    state.put(number, in_memory(entry));
                    number
                }
            };
            state.numbers.push(number);
        }
        if let Some(id) = layouts {
            let id = ObjectId::new(id);
            for entry in Zap::hold(objset, id).await?.all().await? {
                let number = entry.name_str().parse::<u16>().map_err(|_| {
                    damaged(
                        id,
                        "sa layouts",
                        format!("no number: {:?}", entry.name_str()),
                    )
                })?;
                let layout: Vec<u16> = entry
                    .value
                    .to_u64s()
                    .iter()
                    .map(|attribute| *attribute as u16)
                    .collect();
                state.add_layout(number, layout.into());
            }
        }
        Ok(Arc::new(Sa {
            objset: objset.clone(),
            master,
            state: RwLock::new(state),
            growing: tokio::sync::Mutex::new(()),
        }))
    }

    /// Creates the SA master object of a new filesystem (type SA_MASTER_NODE), empty.
    ///
    /// # Errors
    /// As [`Zap::create`].
    pub async fn create_master(objset: &Arc<ObjectSet>, tx: &Tx) -> Result<ObjectId> {
        let options = ZapOptions::new(ObjectType::SA_MASTER_NODE);
        Ok(Zap::create(objset, tx, options).await?.id())
    }

    /// The attribute's number in this object set.
    pub fn attribute_id(&self, attribute: SaAttribute) -> Option<AttributeId> {
        let state = self.state.read();
        let number = state.numbers.get(usize::from(attribute.0))?;
        Some(AttributeId(*number))
    }

    fn number(&self, object: &Object, attribute: SaAttribute) -> Result<u16> {
        self.state.read().number(object, attribute)
    }

    /// Finds the attributes of a bonus.
    fn bonus(&self, object: &Object) -> Result<Option<Buffer>> {
        let (kind, bytes) = {
            let state = object.dnode.lock();
            let meta = state.meta();
            (meta.bonus_type, meta.bonus.clone())
        };
        self.bonus_buffer(object, kind, bytes)
    }

    fn bonus_buffer(
        &self,
        object: &Object,
        kind: ObjectType,
        bytes: Bytes,
    ) -> Result<Option<Buffer>> {
        if kind == ObjectType::ZNODE {
            let state = self.state.read();
            let mut at = 0;
            let mut places = Vec::with_capacity(LEGACY.len());
            for number in 0..LEGACY.len() as u16 {
                let length = usize::from(state.length_of(number).unwrap_or(0));
                if at + length > bytes.len() {
                    return Err(damaged(
                        object.id(),
                        "znode_phys_t",
                        "its bonus is too short",
                    ));
                }
                places.push((number, at..at + length));
                at += length;
            }
            return Ok(Some(Buffer {
                endian: Endian::Little,
                bytes,
                places,
            }));
        }
        if kind != ObjectType::SA {
            return Err(ObjectError::WrongType {
                object: object.id(),
                found: kind,
                expected: "a bonus of system attributes or an old znode",
            });
        }
        self.located(object, bytes)
    }

    /// Finds the attributes of a buffer; `None` when it was never filled.
    fn located(&self, object: &Object, bytes: Bytes) -> Result<Option<Buffer>> {
        if SaHeader::is_unfilled(&bytes) {
            return Ok(None);
        }
        let header = SaHeader::decode(&bytes).of(object.id())?;
        let state = self.state.read();
        let Some(layout) = state.layouts.get(&header.layout) else {
            // Number 1 is a buffer without attributes.
            if header.layout < SA_FIRST_LAYOUT {
                return Ok(None);
            }
            let detail = format!("layout {} does not exist", header.layout);
            return Err(damaged(object.id(), "sa_hdr_phys_t", detail));
        };
        let places = header
            .locate(&bytes, layout, |number| state.length_of(number))
            .of(object.id())?;
        Ok(Some(Buffer {
            endian: header.endian,
            bytes,
            places,
        }))
    }

    /// Both buffers.
    fn buffers(&self, object: &Object, found: BonusAndSpill) -> Result<[Option<Buffer>; 2]> {
        let bonus = self.bonus_buffer(object, found.bonus_type, found.bonus)?;
        let spill = match found.spill {
            Some(bytes) => self.located(object, bytes)?,
            None => None,
        };
        Ok([bonus, spill])
    }

    /// One attribute of a buffer, in our byte order.
    fn take(&self, buffer: &Buffer, place: &(u16, std::ops::Range<usize>)) -> Bytes {
        let data = buffer.bytes.slice(place.1.clone());
        if buffer.endian == Endian::Little {
            return data;
        }
        let mut data = data.to_vec();
        // The types whose blocks are swapped in the same way.
        let kind = match self.state.read().byteswap_of(place.0) {
            SaByteswap::Uint64 => ObjectType::OTN_UINT64_METADATA,
            SaByteswap::Uint32 => ObjectType::OTN_UINT32_METADATA,
            SaByteswap::Uint16 => ObjectType::OTN_UINT16_METADATA,
            SaByteswap::Acl => ObjectType::ACL,
            SaByteswap::Uint8 | SaByteswap::Unknown(_) => ObjectType::OTN_UINT8_METADATA,
        };
        swap_words(kind, &mut data);
        Bytes::from(data)
    }

    fn find(&self, buffer: &Option<Buffer>, number: u16) -> Option<Bytes> {
        let buffer = buffer.as_ref()?;
        let place = buffer.places.iter().find(|(found, _)| *found == number)?;
        Some(self.take(buffer, place))
    }

    fn find_in(&self, buffers: &[Option<Buffer>], number: u16) -> Option<Bytes> {
        buffers.iter().find_map(|buffer| self.find(buffer, number))
    }

    /// One attribute's bytes (in our byte order), `None` when the object does not have it.
    ///
    /// # Errors
    /// Errors of reading the spill block; damage.
    pub async fn get(&self, object: &Object, attribute: SaAttribute) -> Result<Option<Bytes>> {
        let found = self.get_many(object, &[attribute]).await?;
        Ok(found.into_iter().next().flatten())
    }

    /// Like [`Self::get`] when the attribute is in the bonus; outer `None` when the spill block
    /// must be read.
    pub fn try_get(
        &self,
        object: &Object,
        attribute: SaAttribute,
    ) -> Option<Result<Option<Bytes>>> {
        let find = || -> Result<Option<Option<Bytes>>> {
            let number = self.number(object, attribute)?;
            if let Some(found) = self.find(&self.bonus(object)?, number) {
                return Ok(Some(Some(found)));
            }
            match object.try_bonus_and_spill() {
                None => Ok(None),
                Some(found) => Ok(Some(self.find_in(&self.buffers(object, found?)?, number))),
            }
        };
        find().transpose()
    }

    /// Several attributes at once.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn get_many(
        &self,
        object: &Object,
        attributes: &[SaAttribute],
    ) -> Result<Vec<Option<Bytes>>> {
        let numbers = attributes
            .iter()
            .map(|attribute| self.number(object, *attribute))
            .collect::<Result<Vec<_>>>()?;
        let bonus = self.bonus(object)?;
        let out: Vec<_> = numbers
            .iter()
            .map(|number| self.find(&bonus, *number))
            .collect();
        if out.iter().all(Option::is_some) {
            return Ok(out);
        }
        let buffers = self.buffers(object, object.bonus_and_spill().await?)?;
        Ok(numbers
            .iter()
            .map(|number| self.find_in(&buffers, *number))
            .collect())
    }

    /// All attributes of an object that the table knows.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn get_all(&self, object: &Object) -> Result<Vec<(SaAttribute, Bytes)>> {
        let values = self.values(object).await?;
        let state = self.state.read();
        Ok(values
            .into_iter()
            .filter_map(|(number, data)| {
                let index = state.numbers.iter().position(|known| *known == number)?;
                Some((SaAttribute(index as u16), data))
            })
            .collect())
    }

    /// All attributes of an object in their order: the bonus's, then the spill block's.
    async fn values(&self, object: &Object) -> Result<Vec<(u16, Bytes)>> {
        let buffers = self.buffers(object, object.bonus_and_spill().await?)?;
        let mut out = Vec::new();
        for buffer in buffers.iter().flatten() {
            for place in &buffer.places {
                out.push((place.0, self.take(buffer, place)));
            }
        }
        Ok(out)
    }

    /// Sets attributes in place, where all of them are in the bonus with the same length: most
    /// changes of a file are that. Else false, with nothing changed: then it is up to
    /// [`Self::set`].
    ///
    /// # Errors
    /// Damage; [`ObjectError::Misuse`] as with [`Self::set`].
    pub fn try_set(
        &self,
        object: &Object,
        tx: &Tx,
        attributes: impl IntoIterator<Item = (SaAttribute, SaFixed)>,
    ) -> Result<bool> {
        change_bonus(object, tx, |kind, bonus| {
            if kind != ObjectType::SA || SaHeader::is_unfilled(bonus) {
                return Ok(false);
            }
            let header = SaHeader::decode(bonus).of(object.id())?;
            let state = self.state.read();
            let Some(layout) = state.layouts.get(&header.layout) else {
                return Ok(false);
            };
            if !state.all_registered || header.endian != Endian::Little {
                return Ok(false);
            }
            // All are found before the first is changed.
            let mut changes = [None::<InPlace>; IN_PLACE_MAX];
            let mut free = changes.iter_mut();
            for (attribute, value) in attributes {
                let number = state.number(object, attribute)?;
                let Some(change) = free.next() else {
                    return Ok(false);
                };
                *change = Some(InPlace {
                    number,
                    value,
                    start: None,
                });
            }
            for place in header.places(bonus, layout, |number| state.length_of(number)) {
                let (number, place) = place.of(object.id())?;
                for change in changes.iter_mut().flatten() {
                    if change.number == number && change.value.as_bytes().len() == place.len() {
                        change.start = Some(place.start);
                    }
                }
            }
            if changes.iter().flatten().any(|it| it.start.is_none()) {
                return Ok(false);
            }
            for change in changes.iter().flatten() {
                let (start, value) = (change.start.unwrap_or(0), change.value.as_bytes());
                bonus[start..start + value.len()].copy_from_slice(value);
            }
            Ok(true)
        })
    }

    /// Sets attributes: in place where present with the same length, else by a new layout.
    ///
    /// # Errors
    /// [`ObjectError::TooBig`]; [`ObjectError::Unsupported`] for attributes that old znodes do not
    /// have; errors of reading and of making layouts.
    pub async fn set(
        &self,
        object: &Object,
        tx: &Tx,
        attributes: &[(SaAttribute, Bytes)],
    ) -> Result<()> {
        let changes = self.checked(object, attributes)?;
        self.register(tx).await?;
        if let Some(bonus) = self.bonus(object)?
            && bonus.endian == Endian::Little
        {
            // Most often everything is there with the same length.
            let places: Option<Vec<_>> = changes
                .iter()
                .map(|change| {
                    let place = bonus
                        .places
                        .iter()
                        .find(|(number, _)| *number == change.number)?;
                    (place.1.len() == change.data.len()).then(|| place.1.clone())
                })
                .collect();
            if let Some(places) = places {
                let mut bytes = bonus.bytes.to_vec();
                for (change, place) in changes.iter().zip(places) {
                    bytes[place].copy_from_slice(change.data);
                }
                return object.set_bonus(tx, bytes);
            }
        }
        let before = self.values(object).await?;
        let mut values = borrowed(&before);
        for change in changes {
            match values
                .iter_mut()
                .find(|value| value.number == change.number)
            {
                Some(value) => value.data = change.data,
                None => values.push(change),
            }
        }
        self.write(object, tx, &values).await
    }

    /// Replaces all attributes, in this order (`sa_replace_all_by_template`): for new objects, and
    /// to turn an old znode into system attributes.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub async fn replace_all<V: AsRef<[u8]> + Sync>(
        &self,
        object: &Object,
        tx: &Tx,
        attributes: &[(SaAttribute, V)],
    ) -> Result<()> {
        let values = self.checked(object, attributes)?;
        self.register(tx).await?;
        self.write(object, tx, &values).await
    }

    /// Removes an attribute; fine when the object does not have it.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub async fn remove(&self, object: &Object, tx: &Tx, attribute: SaAttribute) -> Result<()> {
        let number = self.number(object, attribute)?;
        self.register(tx).await?;
        let before = self.values(object).await?;
        let mut values = borrowed(&before);
        values.retain(|value| value.number != number);
        if values.len() == before.len() {
            return Ok(());
        }
        self.write(object, tx, &values).await
    }

    /// Attributes to be written, with their numbers; their lengths are as they are registered.
    fn checked<'a, V: AsRef<[u8]>>(
        &self,
        object: &Object,
        attributes: &'a [(SaAttribute, V)],
    ) -> Result<Vec<Value<'a>>> {
        let state = self.state.read();
        let mut values = Vec::with_capacity(attributes.len());
        for (attribute, data) in attributes {
            let data = data.as_ref();
            let number = state.number(object, *attribute)?;
            let registered = state.length_of(number).unwrap_or(0);
            let fits = match registered {
                0 => u16::try_from(data.len()).is_ok(),
                length => data.len() == usize::from(length),
            };
            if !fits {
                return Err(ObjectError::TooBig {
                    object: object.id(),
                    what: format!(
                        "attribute {number} of {} bytes (registered are {registered}, 0 is \
                         variable)",
                        data.len()
                    ),
                });
            }
            values.push(Value { number, data });
        }
        Ok(values)
    }

    /// Writes all attributes of an object (`sa_build_layouts`).
    async fn write(&self, object: &Object, tx: &Tx, values: &[Value<'_>]) -> Result<()> {
        let info = object.info();
        if info.bonus_type == ObjectType::ZNODE && self.master.is_zero() {
            return self.write_legacy(object, tx, values);
        }
        let (lengths, room): (Vec<(u16, usize)>, usize) = {
            let state = self.state.read();
            let lengths = values
                .iter()
                .map(|value| {
                    let registered = state.length_of(value.number).unwrap_or(0);
                    (registered, value.data.len())
                })
                .collect();
            (lengths, max_bonus_bytes(info.slots))
        };
        let spill_from = spill_index(&lengths, room);
        let (in_bonus, in_spill) = values.split_at(spill_from.unwrap_or(values.len()));
        let (bonus_lengths, spill_lengths) = lengths.split_at(in_bonus.len());
        let mut bonus = self.encode(object, tx, in_bonus, bonus_lengths).await?;
        let mut spill = None;
        if !in_spill.is_empty() {
            // The bonus then reaches up to the spill block's pointer, whatever is in it.
            bonus.resize(bonus.len().max(room - BLOCK_POINTER_BYTES), 0);
            let bytes = self.encode(object, tx, in_spill, spill_lengths).await?;
            if bytes.len() > SPILL_MAX_BYTES {
                return Err(ObjectError::TooBig {
                    object: object.id(),
                    what: format!("attributes of {} bytes in a spill block", bytes.len()),
                });
            }
            spill = Some(Bytes::from(bytes));
        }
        if info.bonus_type != ObjectType::SA {
            object.set_bonus_typed(tx, ObjectType::SA, Bytes::new())?;
        }
        object.set_bonus_and_spill(tx, Bytes::from(bonus), spill)
    }

    /// One buffer with these attributes.
    async fn encode(
        &self,
        object: &Object,
        tx: &Tx,
        values: &[Value<'_>],
        lengths: &[(u16, usize)],
    ) -> Result<Vec<u8>> {
        let layout: Vec<u16> = values.iter().map(|value| value.number).collect();
        let number = self.layout_number(object, tx, &layout).await?;
        let attributes: Vec<(u16, &[u8])> = values
            .iter()
            .zip(lengths)
            .map(|(value, (registered, _))| (*registered, value.data))
            .collect();
        encode_sa(number, &attributes).of(object.id())
    }

    /// An old znode: only what it has a place for.
    fn write_legacy(&self, object: &Object, tx: &Tx, values: &[Value<'_>]) -> Result<()> {
        let buffer = self.bonus(object)?;
        let Some(buffer) = buffer else {
            return Err(damaged(object.id(), "znode_phys_t", "its bonus is empty"));
        };
        let mut bytes = buffer.bytes.to_vec();
        for value in values {
            let place = buffer
                .places
                .iter()
                .find(|(number, _)| *number == value.number);
            let Some((_, place)) = place else {
                return Err(ObjectError::Unsupported {
                    object: object.id(),
                    what: "an attribute that znodes of this old filesystem version do not have",
                });
            };
            bytes[place.clone()].copy_from_slice(value.data);
        }
        object.set_bonus(tx, bytes)
    }

    fn known_layout(&self, layout: &[u16]) -> Option<u16> {
        self.state.read().by_content.get(layout).copied()
    }

    /// The number of a layout, made if there is none (`sa_find_layout`).
    async fn layout_number(&self, object: &Object, tx: &Tx, layout: &[u16]) -> Result<u16> {
        if let Some(number) = self.known_layout(layout) {
            return Ok(number);
        }
        let _growing = self.growing.lock().await;
        if let Some(number) = self.known_layout(layout) {
            return Ok(number);
        }
        let number = self.state.read().next_layout();
        if number >= LAYOUTS_MAX {
            return Err(ObjectError::TooBig {
                object: object.id(),
                what: format!("a filesystem with more than {LAYOUTS_MAX} attribute layouts"),
            });
        }
        let zap = self
            .linked(tx, LAYOUTS, ObjectType::SA_ATTR_LAYOUTS)
            .await?;
        let data: Vec<u8> = layout.iter().flat_map(|id| id.to_le_bytes()).collect();
        let value = ZapValue {
            integer_bytes: 2,
            data: Bytes::from(data),
        };
        zap.update(tx, number.to_string(), value).await?;
        self.state.write().add_layout(number, layout.into());
        Ok(number)
    }

    /// The ZAP that the master object names, created if there is none (`zap_create_link`).
    async fn linked(&self, tx: &Tx, name: &str, kind: ObjectType) -> Result<Zap> {
        let master = Zap::hold(&self.objset, self.master).await?;
        if let Some(id) = master.lookup_u64(name).await? {
            return Zap::hold(&self.objset, ObjectId::new(id)).await;
        }
        let zap = Zap::create(&self.objset, tx, ZapOptions::new(kind)).await?;
        master.add_u64(tx, name, zap.id().get()).await?;
        Ok(zap)
    }

    /// Puts attributes that are not there yet into the registry (`sa_attr_register_sync`).
    async fn register(&self, tx: &Tx) -> Result<()> {
        if self.master.is_zero() || self.state.read().all_registered {
            return Ok(());
        }
        let _growing = self.growing.lock().await;
        let missing: Vec<(u16, Registered)> = {
            let state = self.state.read();
            state
                .attributes
                .iter()
                .enumerate()
                .filter_map(|(number, attribute)| {
                    let attribute = attribute.as_ref()?;
                    (!attribute.on_disk).then(|| (number as u16, attribute.clone()))
                })
                .collect()
        };
        if !missing.is_empty() {
            let zap = self
                .linked(tx, REGISTRY, ObjectType::SA_ATTR_REGISTRATION)
                .await?;
            for (number, attribute) in &missing {
                let word = format::SaRegistration {
                    number: *number,
                    length_bytes: attribute.length_bytes,
                    byteswap: attribute.byteswap,
                }
                .encode();
                zap.update_u64(tx, &attribute.name, word).await?;
            }
        }
        let mut state = self.state.write();
        for (number, _) in missing {
            if let Some(Some(attribute)) = state.attributes.get_mut(usize::from(number)) {
                attribute.on_disk = true;
            }
        }
        state.all_registered = true;
        Ok(())
    }
}

/// Attributes with their numbers, as they are to be written.
fn borrowed(values: &[(u16, Bytes)]) -> Vec<Value<'_>> {
    let values = values.iter().map(|(number, data)| Value {
        number: *number,
        data: &data[..],
    });
    values.collect()
}

/// From which attribute on they go to the spill block; `None` when all fit the bonus
/// (`sa_find_sizes`). Lengths are (registered, actual); `room` is the whole bonus's.
fn spill_index(lengths: &[(u16, usize)], room: usize) -> Option<usize> {
    const HEADER_BYTES: usize = 8;
    let mut header = HEADER_BYTES;
    let mut total = 0usize;
    let mut variable = 0;
    // The first attribute that would be in the way of the spill block's pointer.
    let mut candidate = None;
    for (index, (registered, length)) in lengths.iter().enumerate() {
        total = total.next_multiple_of(8) + length;
        let more_lengths = *registered == 0 && {
            variable += 1;
            variable > 1
        };
        let next_header = header + if more_lengths { 2 } else { 0 };
        if candidate.is_none()
            && total + next_header.next_multiple_of(8) > room - BLOCK_POINTER_BYTES
        {
            candidate = Some(index);
        }
        if more_lengths {
            if next_header + total >= room {
                return candidate.or(Some(index));
            }
            header = next_header;
        }
        if total + header.next_multiple_of(8) > room {
            return candidate.or(Some(index));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::spill_index;

    #[test]
    fn attributes_spill_from_the_first_one_in_the_pointers_way() {
        // 20 words fit 320 bytes.
        assert_eq!(spill_index(&[(8, 8); 20], 320), None);
        // 41 words do not; the pointer takes the last 128 bytes, so 23 words and the header stay.
        assert_eq!(spill_index(&[(8, 8); 41], 320), Some(23));
        // A long last attribute goes alone.
        let mut lengths = vec![(8, 8); 10];
        lengths.push((0, 300));
        assert_eq!(spill_index(&lengths, 320), Some(10));
        // The same in a larger dnode stays.
        assert_eq!(spill_index(&lengths, 832), None);
    }
}
