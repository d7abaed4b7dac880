//! Structures that are fields one after the other: declared once, encoded and decoded from that.

use crate::blkptr::{BLOCK_POINTER_BYTES, BlockPointer, read_pointer};
use crate::bytes::{Endian, Put, Reader};
use crate::error::Result;
use crate::ids::{Guid, ObjectId, ObjsetId, Txg};

/// A value of a fixed size within a structure.
pub(crate) trait Field: Sized {
    const BYTES: usize;
    fn read(reader: &mut Reader<'_>, endian: Endian) -> Result<Self>;
    fn write(&self, out: &mut Vec<u8>);
}

impl Field for u64 {
    const BYTES: usize = 8;

    fn read(reader: &mut Reader<'_>, _: Endian) -> Result<Self> {
        reader.u64()
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(*self);
    }
}

impl Field for i64 {
    const BYTES: usize = 8;

    fn read(reader: &mut Reader<'_>, _: Endian) -> Result<Self> {
        Ok(reader.u64()? as i64)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(*self as u64);
    }
}

macro_rules! identifier_fields {
    ($($name:ident)*) => {
        $(impl Field for $name {
            const BYTES: usize = 8;

            fn read(reader: &mut Reader<'_>, _: Endian) -> Result<Self> {
                Ok(Self::new(reader.u64()?))
            }

            fn write(&self, out: &mut Vec<u8>) {
                out.put_u64(self.get());
            }
        })*
    };
}

identifier_fields! { Txg Guid ObjectId ObjsetId }

impl Field for BlockPointer {
    const BYTES: usize = BLOCK_POINTER_BYTES;

    fn read(reader: &mut Reader<'_>, endian: Endian) -> Result<Self> {
        read_pointer(reader, endian)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.encode());
    }
}

impl<T: Field + Copy + Default, const N: usize> Field for [T; N] {
    const BYTES: usize = T::BYTES * N;

    fn read(reader: &mut Reader<'_>, endian: Endian) -> Result<Self> {
        let mut out = [T::default(); N];
        for value in &mut out {
            *value = T::read(reader, endian)?;
        }
        Ok(out)
    }

    fn write(&self, out: &mut Vec<u8>) {
        for value in self {
            value.write(out);
        }
    }
}

/// Declares a structure of 64-bit fields: OpenZFS's name of it, its size with trailing padding,
/// and its fields in order.
macro_rules! disk_struct {
    ($(#[$meta:meta])* $name:ident, $disk:literal, $bytes:literal {
        $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        const _: () = assert!(
            0 $(+ <$type as $crate::words::Field>::BYTES)* <= $bytes,
            "fields are larger than the structure"
        );

        impl $name {
            /// Size in bytes.
            pub const BYTES: usize = $bytes;

            /// Decodes the structure at the start of `bytes`, in their byte order.
            ///
            /// # Errors
            /// [`crate::FormatError::TooShort`].
            pub fn decode(
                bytes: &[u8],
                endian: $crate::bytes::Endian,
            ) -> $crate::error::Result<Self> {
                let mut reader = $crate::bytes::Reader::new($disk, bytes, endian);
                <Self as $crate::words::Field>::read(&mut reader, endian)
            }

            /// The bytes, little-endian, with padding zeroed.
            pub fn encode(&self) -> [u8; $bytes] {
                let mut out = Vec::with_capacity($bytes);
                $crate::words::Field::write(self, &mut out);
                $crate::bytes::exact(&out)
            }

            /// From 64-bit words, as a ZAP holds it.
            ///
            /// # Errors
            /// [`crate::FormatError::TooShort`].
            pub fn from_words(words: &[u64]) -> $crate::error::Result<Self> {
                let bytes: Vec<u8> = words
                    .iter()
                    .take($bytes / 8)
                    .flat_map(|word| word.to_le_bytes())
                    .collect();
                Self::decode(&bytes, $crate::bytes::Endian::Little)
            }

            /// As 64-bit words, for a ZAP.
            pub fn to_words(&self) -> Vec<u64> {
                $crate::bytes::Endian::Little.words(&self.encode()).collect()
            }
        }

        impl $crate::words::Field for $name {
            const BYTES: usize = $bytes;

            fn read(
                reader: &mut $crate::bytes::Reader<'_>,
                endian: $crate::bytes::Endian,
            ) -> $crate::error::Result<Self> {
                let start = reader.position();
                let out = Self {
                    $($field: <$type as $crate::words::Field>::read(reader, endian)?,)*
                };
                reader.skip(start + $bytes - reader.position())?;
                Ok(out)
            }

            fn write(&self, out: &mut Vec<u8>) {
                let start = out.len();
                $($crate::words::Field::write(&self.$field, out);)*
                out.resize(start + $bytes, 0);
            }
        }
    };
}

pub(crate) use disk_struct;
