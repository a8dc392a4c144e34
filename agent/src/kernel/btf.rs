//! The type information of the running kernel (BTF): where a member is, which functions there are.
//!
//! Problem: Rust BPF objects carry no relocations for kernel structs, so somebody has to know that `kernfs_node.id` is at
//! byte 96 here and 104 there. Approach: read `/sys/kernel/btf/vmlinux` and look the names up, walking anonymous members,
//! arrays, typedefs and qualifiers. Every read is bounds-checked; malformed input is a typed error, never a panic, and every
//! walk is bounded. Format: Documentation/bpf/btf.rst.
//!
//! Terms: a *type id* counts the records of the type section from 1; 0 is `void`.

use std::cell::OnceCell;
use std::collections::HashMap;

use zerocopy::IntoBytes as _;

/// Anonymous members, typedefs and qualifiers followed, at most. The deepest in a real kernel is below ten.
const DEPTH_MAX: usize = 32;

/// At the start, in the byte order of the machine.
const MAGIC: u16 = 0xeb9f;
/// Length of the header of version 1.
const HEADER_BYTES: u32 = 24;

/// Why the type information cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    /// Does not start with the magic number, in this machine's byte order.
    #[error("not BTF: it does not start with the magic number 0xeb9f")]
    Magic,
    /// Ends inside the header, a section or a record.
    #[error("BTF ends in the middle of its {part}, at byte {at}")]
    Truncated {
        /// Of what.
        part: &'static str,
        /// Where.
        at: usize,
    },
    /// A record of a kind that this reader cannot skip, because it does not know its length.
    #[error(
        "BTF record {id} is of kind {kind}, which this plimsoll does not know: it needs an update for this kernel"
    )]
    Kind {
        /// Type id.
        id: u32,
        /// The kind's number.
        kind: u8,
    },
}

/// What a type record is. Numbers of `include/uapi/linux/btf.h`.
mod kind {
    pub(super) const INT: u8 = 1;
    pub(super) const PTR: u8 = 2;
    pub(super) const ARRAY: u8 = 3;
    pub(super) const STRUCT: u8 = 4;
    pub(super) const UNION: u8 = 5;
    pub(super) const ENUM: u8 = 6;
    pub(super) const FWD: u8 = 7;
    pub(super) const TYPEDEF: u8 = 8;
    pub(super) const VOLATILE: u8 = 9;
    pub(super) const CONST: u8 = 10;
    pub(super) const RESTRICT: u8 = 11;
    pub(super) const FUNC: u8 = 12;
    pub(super) const FUNC_PROTO: u8 = 13;
    pub(super) const VAR: u8 = 14;
    pub(super) const DATASEC: u8 = 15;
    pub(super) const FLOAT: u8 = 16;
    pub(super) const DECL_TAG: u8 = 17;
    pub(super) const TYPE_TAG: u8 = 18;
    pub(super) const ENUM64: u8 = 19;
}

/// Parsed type information, borrowing the bytes.
pub struct Btf<'data> {
    data: &'data [u8],
    /// Where the strings are in `data`.
    strings: &'data [u8],
    /// Where each type's record starts, by type id; index 0 is unused.
    types: Vec<u32>,
    /// Structs, functions and typedefs by kind and name. Of equal names the first, as in the kernel's own lookup.
    names: HashMap<(u8, &'data [u8]), u32>,
    /// Values of enumerators, once one was asked for.
    enumerators: OnceCell<HashMap<&'data [u8], u32>>,
}

/// A type's record, read.
#[derive(Clone, Copy)]
struct Type {
    /// Offset of what follows the common part.
    body: usize,
    name: u32,
    kind: u8,
    /// Number of members, parameters or values.
    length: usize,
    /// For structs: member offsets carry bitfield sizes.
    has_bitfields: bool,
    /// Size or type id, by kind.
    size_or_type: u32,
}

/// A member found: where, and of which type.
#[derive(Clone, Copy)]
struct Place {
    bits: u64,
    type_id: u32,
    /// 0 for what is no bitfield.
    bitfield_bits: u32,
}

fn u32_at(data: &[u8], at: usize, part: &'static str) -> Result<u32, BtfError> {
    at.checked_add(4)
        .and_then(|end| data.get(at..end))
        .and_then(|bytes| bytes.first_chunk::<4>())
        .map(|bytes| u32::from_ne_bytes(*bytes))
        .ok_or(BtfError::Truncated { part, at })
}

/// The typedef that stands for a tracepoint.
pub(super) fn tracepoint(name: &str) -> String {
    format!("btf_trace_{name}")
}

impl<'data> Btf<'data> {
    /// Reads the tables.
    ///
    /// # Errors
    /// [`BtfError`] when the bytes are not BTF, end too early, or hold a record of unknown length.
    pub fn parse(data: &'data [u8]) -> Result<Self, BtfError> {
        const HEADER: &str = "header";
        if data
            .first_chunk::<2>()
            .map(|magic| u16::from_ne_bytes(*magic))
            != Some(MAGIC)
        {
            return Err(BtfError::Magic);
        }
        let header_bytes = u32_at(data, 4, HEADER)? as usize;
        let section = |offset_at, length_at, part| {
            let start = header_bytes.saturating_add(u32_at(data, offset_at, HEADER)? as usize);
            let end = start.saturating_add(u32_at(data, length_at, HEADER)? as usize);
            if start > end || end > data.len() {
                return Err(BtfError::Truncated {
                    part,
                    at: data.len(),
                });
            }
            Ok(start..end)
        };
        let types = section(8, 12, "type section")?;
        let strings = section(16, 20, "string section")?;
        let mut btf = Btf {
            data: &data[..types.end],
            strings: &data[strings],
            types: vec![0],
            names: HashMap::new(),
            enumerators: OnceCell::new(),
        };
        let mut at = types.start;
        while at < types.end {
            // A record is at least 12 bytes and a section at most 4 GiB, so both fit.
            let id = btf.types.len() as u32;
            let found = btf.read_type(at)?;
            let tail = match found.kind {
                kind::INT | kind::VAR | kind::DECL_TAG => 4,
                kind::ARRAY => 12,
                kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * found.length,
                kind::ENUM | kind::FUNC_PROTO => 8 * found.length,
                kind::PTR
                | kind::FWD
                | kind::TYPEDEF
                | kind::VOLATILE
                | kind::CONST
                | kind::RESTRICT
                | kind::FUNC
                | kind::FLOAT
                | kind::TYPE_TAG => 0,
                kind => return Err(BtfError::Kind { id, kind }),
            };
            let end = found.body + tail;
            if end > types.end {
                return Err(BtfError::Truncated {
                    part: "type record",
                    at,
                });
            }
            btf.types.push(at as u32);
            if matches!(found.kind, kind::STRUCT | kind::FUNC | kind::TYPEDEF) {
                let name = btf.string(found.name);
                if !name.is_empty() {
                    btf.names.entry((found.kind, name)).or_insert(id);
                }
            }
            at = end;
        }
        Ok(btf)
    }

    /// BTF in which these functions and typedefs have the numbers that they have here, and all other records are empty: a reader that needs only
    /// these numbers has little to read. What the kernel does not have is left out.
    #[must_use]
    pub fn with_only<'names>(
        &self,
        functions: impl Iterator<Item = &'names str>,
        typedefs: impl Iterator<Item = &'names str>,
    ) -> Vec<u8> {
        let functions = functions.map(|name| (kind::FUNC, name));
        let wanted = functions.chain(typedefs.map(|name| (kind::TYPEDEF, name)));
        // A declaration without a name has the shortest record there is.
        let mut records = vec![[0, u32::from(kind::FWD) << 24, 0]; self.types.len() - 1];
        let mut strings = vec![0];
        for (kind, name) in wanted {
            if let Some(&id) = self.names.get(&(kind, name.as_bytes())) {
                // Shorter than the strings that the name is from.
                records[id as usize - 1] = [strings.len() as u32, u32::from(kind) << 24, 0];
                strings.extend_from_slice(name.as_bytes());
                strings.push(0);
            }
        }
        let types = records.as_bytes();
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        // The version, no flags.
        bytes.extend_from_slice(&[1, 0]);
        for number in [
            HEADER_BYTES,
            0,
            types.len() as u32,
            types.len() as u32,
            strings.len() as u32,
        ] {
            bytes.extend_from_slice(&number.to_ne_bytes());
        }
        bytes.extend_from_slice(types);
        bytes.extend_from_slice(&strings);
        bytes
    }

    /// Whether the kernel has this function (it may still not be traceable).
    #[must_use]
    pub fn has_function(&self, name: &str) -> bool {
        self.names.contains_key(&(kind::FUNC, name.as_bytes()))
    }

    /// Whether the kernel has this tracepoint.
    #[must_use]
    pub fn has_tracepoint(&self, name: &str) -> bool {
        self.names
            .contains_key(&(kind::TYPEDEF, tracepoint(name).as_bytes()))
    }

    /// The position of a parameter of a function, counted from 0.
    #[must_use]
    pub fn parameter(&self, function: &str, parameter: &str) -> Option<u32> {
        let id = *self.names.get(&(kind::FUNC, function.as_bytes()))?;
        let prototype = self.type_by_id(self.type_by_id(id)?.size_or_type)?;
        if prototype.kind != kind::FUNC_PROTO {
            return None;
        }
        (0..prototype.length)
            .position(|index| {
                u32_at(self.data, prototype.body + 8 * index, "")
                    .is_ok_and(|name| self.string(name) == parameter.as_bytes())
            })
            .map(|index| index as u32)
    }

    /// The value of an enumerator of any enum; of equal names the first.
    #[must_use]
    pub fn enumerator(&self, name: &str) -> Option<u32> {
        let all = self.enumerators.get_or_init(|| self.all_enumerators());
        all.get(name.as_bytes()).copied()
    }

    /// Every enumerator: one walk over all types for the dozen that are asked for.
    fn all_enumerators(&self) -> HashMap<&'data [u8], u32> {
        let mut all = HashMap::new();
        let types = (1..self.types.len() as u32).filter_map(|id| self.type_by_id(id));
        for found in types.filter(|found| found.kind == kind::ENUM) {
            for index in 0..found.length {
                let at = found.body + 8 * index;
                let name = u32_at(self.data, at, "");
                if let (Ok(name), Ok(value)) = (name, u32_at(self.data, at + 4, "")) {
                    all.entry(self.string(name)).or_insert(value);
                }
            }
        }
        all
    }

    /// The byte offset of a member, written as in C: `kernfs_node.id`, `mm_struct.rss_stat[1].count`. Embedded structs,
    /// arrays and anonymous members are walked, pointers are not. `None` when there is no such member, or it is a bitfield.
    #[must_use]
    pub fn offset(&self, path: &str) -> Option<u32> {
        let mut parts = path.split('.');
        let mut place = Place {
            bits: 0,
            bitfield_bits: 0,
            type_id: *self.names.get(&(kind::STRUCT, parts.next()?.as_bytes()))?,
        };
        for part in parts {
            let (name, index) = match part.split_once('[') {
                Some((name, index)) => (name, Some(index.strip_suffix(']')?.parse::<u32>().ok()?)),
                None => (part, None),
            };
            let found = self.member(self.strip(place.type_id)?, name.as_bytes(), 0)?;
            place = Place {
                bits: place.bits.checked_add(found.bits)?,
                ..found
            };
            if let Some(index) = index {
                place = self.element(place, index)?;
            }
        }
        (place.bits.is_multiple_of(8))
            .then(|| u32::try_from(place.bits / 8).ok())
            .flatten()
    }

    /// The position of a member of one bit, counted in bits from the start of the struct, as little-endian machines count.
    #[must_use]
    pub fn bit(&self, structure: &str, member: &str) -> Option<u32> {
        let id = *self.names.get(&(kind::STRUCT, structure.as_bytes()))?;
        let place = self.any_member(id, member.as_bytes(), 0)?;
        (place.bitfield_bits == 1)
            .then(|| u32::try_from(place.bits).ok())
            .flatten()
    }

    /// Element `index` of the array at `place`.
    fn element(&self, place: Place, index: u32) -> Option<Place> {
        let array = self.type_by_id(self.strip(place.type_id)?)?;
        if array.kind != kind::ARRAY {
            return None;
        }
        let element = u32_at(self.data, array.body, "").ok()?;
        let count = u32_at(self.data, array.body + 8, "").ok()?;
        if index >= count {
            return None;
        }
        let bytes = self.size(element)?.checked_mul(u64::from(index))?;
        Some(Place {
            bits: place.bits.checked_add(bytes.checked_mul(8)?)?,
            type_id: element,
            bitfield_bits: 0,
        })
    }

    /// Bytes of a type that can be an array's element here.
    fn size(&self, type_id: u32) -> Option<u64> {
        let found = self.type_by_id(self.strip(type_id)?)?;
        match found.kind {
            kind::PTR => Some(size_of::<usize>() as u64),
            kind::INT | kind::STRUCT | kind::UNION | kind::ENUM | kind::ENUM64 => {
                Some(u64::from(found.size_or_type))
            }
            _ => None,
        }
    }

    /// A member that is no bitfield.
    fn member(&self, type_id: u32, name: &[u8], depth: usize) -> Option<Place> {
        self.any_member(type_id, name, depth)
            .filter(|place| place.bitfield_bits == 0)
    }

    /// A member of a struct or union, looked for inside anonymous members too.
    fn any_member(&self, type_id: u32, name: &[u8], depth: usize) -> Option<Place> {
        let holder = self.type_by_id(type_id)?;
        if depth > DEPTH_MAX || !matches!(holder.kind, kind::STRUCT | kind::UNION) {
            return None;
        }
        (0..holder.length).find_map(|index| {
            let at = holder.body + 12 * index;
            let found = self.string(u32_at(self.data, at, "").ok()?);
            let type_id = u32_at(self.data, at + 4, "").ok()?;
            let raw = u32_at(self.data, at + 8, "").ok()?;
            let (bitfield_bits, bits) = if holder.has_bitfields {
                (raw >> 24, raw & 0xff_ffff)
            } else {
                (0, raw)
            };
            let bits = u64::from(bits);
            if found == name {
                return Some(Place {
                    bits,
                    type_id,
                    bitfield_bits,
                });
            }
            if !found.is_empty() {
                return None;
            }
            let inner = self.any_member(self.strip(type_id)?, name, depth + 1)?;
            Some(Place {
                bits: bits.checked_add(inner.bits)?,
                ..inner
            })
        })
    }

    /// The type behind typedefs and qualifiers.
    fn strip(&self, mut type_id: u32) -> Option<u32> {
        for _ in 0..DEPTH_MAX {
            let found = self.type_by_id(type_id)?;
            match found.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    type_id = found.size_or_type;
                }
                _ => return Some(type_id),
            }
        }
        None
    }

    fn type_by_id(&self, id: u32) -> Option<Type> {
        if id == 0 {
            return None;
        }
        self.read_type(*self.types.get(id as usize)? as usize).ok()
    }

    fn read_type(&self, at: usize) -> Result<Type, BtfError> {
        const PART: &str = "type record";
        let info = u32_at(self.data, at + 4, PART)?;
        Ok(Type {
            body: at + 12,
            name: u32_at(self.data, at, PART)?,
            kind: (info >> 24 & 0x1f) as u8,
            length: (info & 0xffff) as usize,
            has_bitfields: info >> 31 == 1,
            size_or_type: u32_at(self.data, at + 8, PART)?,
        })
    }

    /// A name; empty when the offset points nowhere.
    fn string(&self, offset: u32) -> &'data [u8] {
        let rest = self.strings.get(offset as usize..).unwrap_or(&[]);
        rest.split(|byte| *byte == 0).next().unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests;
