//! The type information of the running kernel (BTF): where a member is, which functions there are.
//!
//! Problem: Rust BPF objects carry no relocations for kernel structs, so somebody has to know that `kernfs_node.id` is
//! at byte 96 here and 104 there. Approach: read `/sys/kernel/btf/vmlinux` and look the names up, walking anonymous
//! members, arrays, typedefs and qualifiers. Every read is bounds-checked; malformed input is a typed error, never a
//! panic, and every walk is bounded. Format: Documentation/bpf/btf.rst.
//!
//! The kernel has 100,000 records and more, of which an agent asks for 250, at every start. So one pass notes where
//! each record is and a number made of each name; sorted, a name is found by its number in a few steps. No name is
//! copied, and names that are made to have one number cost a walk over these names, no more.
//!
//! Terms: a *type id* counts the records of the type section from 1; 0 is `void`.

use std::cell::OnceCell;

use aya_obj::btf::{BtfType, Func, FuncLinkage};
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
        /// The part.
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
    /// Type ids of structs, functions and typedefs. Of equal names the first, as in the kernel's own lookup.
    names: Index,
    /// Where each enumerator's record is in `data`, once one was asked for.
    enumerators: OnceCell<Index>,
}

/// Numbers to be found by name: the name's tag in the upper half, the number in the lower, sorted.
struct Index(Vec<u64>);

impl Index {
    fn new(mut tagged: Vec<u64>) -> Self {
        tagged.sort_unstable();
        Index(tagged)
    }

    fn entry(tag: u32, number: u32) -> u64 {
        u64::from(tag) << 32 | u64::from(number)
    }

    /// All numbers whose names have this tag, the lowest first: names can share one.
    fn numbers(&self, tag: u32) -> impl Iterator<Item = u32> {
        let start = self
            .0
            .partition_point(|entry| (*entry >> 32) < u64::from(tag));
        let same = self.0[start..].iter();
        same.take_while(move |entry| **entry >> 32 == u64::from(tag))
            .map(|entry| *entry as u32)
    }
}

/// A number made of a name, which ends at the first zero byte or with the bytes; of names that are read eight bytes at
/// a time, as there are so many.
fn tag(bytes: &[u8]) -> u32 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let mut hash = 0_u64;
    for chunk in bytes.chunks(8) {
        let word = match chunk.first_chunk::<8>() {
            Some(word) => u64::from_le_bytes(*word),
            None => chunk
                .iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u64::from(*byte)),
        };
        // The lowest of these bits is in the first zero byte.
        let zeros = word.wrapping_sub(ONES) & !word & (ONES << 7);
        let kept = match zeros {
            0 => word,
            zeros => word & ((zeros & zeros.wrapping_neg()) >> 7).wrapping_sub(1),
        };
        if kept == 0 {
            break;
        }
        hash = (hash.rotate_left(5) ^ kept).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if zeros != 0 {
            break;
        }
    }
    (hash >> 32) as u32
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
            names: Index(Vec::new()),
            enumerators: OnceCell::new(),
        };
        let mut named = Vec::new();
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
                let name = btf.rest(found.name);
                if name.first().is_some_and(|first| *first != 0) {
                    named.push(Index::entry(tag(name), id));
                }
            }
            at = end;
        }
        btf.names = Index::new(named);
        Ok(btf)
    }

    /// The first type of this kind and name.
    fn id(&self, kind: u8, name: &str) -> Option<u32> {
        let wanted = |id: &u32| {
            self.type_by_id(*id)
                .is_some_and(|found| found.kind == kind && self.is_named(found.name, name))
        };
        self.names.numbers(tag(name.as_bytes())).find(wanted)
    }

    /// BTF for aya in which these functions have the numbers that they have here, and all before them is empty: a
    /// reader that needs only these numbers has little to do. What the kernel does not have is left out.
    #[must_use]
    pub fn with_functions<'names>(&self, names: impl Iterator<Item = &'names str>) -> aya::Btf {
        let mut few = aya::Btf::new();
        // `void`, which has no record, is there.
        let mut next = 1;
        for (id, name) in self.by_id(kind::FUNC, names) {
            while next < id {
                next = few.add_type(BtfType::Unknown) + 1;
            }
            let name = few.add_string(name);
            next = few.add_type(BtfType::Func(Func::new(name, 0, FuncLinkage::Global))) + 1;
        }
        few
    }

    /// The same for typedefs, as bytes: aya makes these of nothing else, at ten times the cost.
    #[must_use]
    pub fn with_typedefs<'names>(&self, names: impl Iterator<Item = &'names str>) -> Vec<u8> {
        let found = self.by_id(kind::TYPEDEF, names);
        let last = found.last().map_or(0, |(id, _)| *id as usize);
        // A declaration without a name has the shortest record there is.
        let mut records = vec![[0, u32::from(kind::FWD) << 24, 0]; last];
        let mut strings = vec![0];
        for (id, name) in found {
            // Shorter than the strings that the name is from.
            records[id as usize - 1] = [strings.len() as u32, u32::from(kind::TYPEDEF) << 24, 0];
            strings.extend_from_slice(name.as_bytes());
            strings.push(0);
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

    /// Those of the names that the kernel has, each once, the lowest id first.
    fn by_id<'names>(
        &self,
        kind: u8,
        names: impl Iterator<Item = &'names str>,
    ) -> Vec<(u32, &'names str)> {
        let mut found: Vec<_> = names
            .filter_map(|name| Some((self.id(kind, name)?, name)))
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Whether the kernel has this function (it may still not be traceable).
    #[must_use]
    pub fn has_function(&self, name: &str) -> bool {
        self.id(kind::FUNC, name).is_some()
    }

    /// Whether the kernel has this tracepoint.
    #[must_use]
    pub fn has_tracepoint(&self, name: &str) -> bool {
        self.id(kind::TYPEDEF, &tracepoint(name)).is_some()
    }

    /// The position of a parameter of a function, counted from 0.
    #[must_use]
    pub fn parameter(&self, function: &str, parameter: &str) -> Option<u32> {
        let id = self.id(kind::FUNC, function)?;
        let prototype = self.type_by_id(self.type_by_id(id)?.size_or_type)?;
        if prototype.kind != kind::FUNC_PROTO {
            return None;
        }
        (0..prototype.length)
            .position(|index| {
                u32_at(self.data, prototype.body + 8 * index, "")
                    .is_ok_and(|name| self.is_named(name, parameter))
            })
            .map(|index| index as u32)
    }

    /// The value of an enumerator of any enum; of equal names the first.
    #[must_use]
    pub fn enumerator(&self, name: &str) -> Option<u32> {
        let all = self.enumerators.get_or_init(|| self.all_enumerators());
        let at = all.numbers(tag(name.as_bytes())).find(|at| {
            u32_at(self.data, *at as usize, "").is_ok_and(|found| self.is_named(found, name))
        })?;
        u32_at(self.data, at as usize + 4, "").ok()
    }

    /// Every enumerator: one walk over all types for the dozen that are asked for.
    fn all_enumerators(&self) -> Index {
        let mut all = Vec::new();
        let types = (1..self.types.len() as u32).filter_map(|id| self.type_by_id(id));
        for found in types.filter(|found| found.kind == kind::ENUM) {
            for index in 0..found.length {
                let at = found.body + 8 * index;
                if let Ok(name) = u32_at(self.data, at, "") {
                    // A section is at most 4 GiB.
                    all.push(Index::entry(tag(self.rest(name)), at as u32));
                }
            }
        }
        Index::new(all)
    }

    /// The byte offset of a member, written as in C: `kernfs_node.id`, `mm_struct.rss_stat[1].count`. Embedded structs,
    /// arrays and anonymous members are walked, pointers are not. `None` when there is no such member, or it is a
    /// bitfield.
    #[must_use]
    pub fn offset(&self, path: &str) -> Option<u32> {
        let mut parts = path.split('.');
        let mut place = Place {
            bits: 0,
            bitfield_bits: 0,
            type_id: self.id(kind::STRUCT, parts.next()?)?,
        };
        for part in parts {
            let (name, index) = match part.split_once('[') {
                Some((name, index)) => (name, Some(index.strip_suffix(']')?.parse::<u32>().ok()?)),
                None => (part, None),
            };
            let found = self.member(self.strip(place.type_id)?, name, 0)?;
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

    /// The position of a member of one bit, counted in bits from the start of the struct, as little-endian machines
    /// count.
    #[must_use]
    pub fn bit(&self, structure: &str, member: &str) -> Option<u32> {
        let id = self.id(kind::STRUCT, structure)?;
        let place = self.any_member(id, member, 0)?;
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
    fn member(&self, type_id: u32, name: &str, depth: usize) -> Option<Place> {
        self.any_member(type_id, name, depth)
            .filter(|place| place.bitfield_bits == 0)
    }

    /// A member of a struct or union, looked for inside anonymous members too.
    fn any_member(&self, type_id: u32, name: &str, depth: usize) -> Option<Place> {
        let holder = self.type_by_id(type_id)?;
        if depth > DEPTH_MAX || !matches!(holder.kind, kind::STRUCT | kind::UNION) {
            return None;
        }
        (0..holder.length).find_map(|index| {
            let at = holder.body + 12 * index;
            let found = u32_at(self.data, at, "").ok()?;
            let type_id = u32_at(self.data, at + 4, "").ok()?;
            let raw = u32_at(self.data, at + 8, "").ok()?;
            let (bitfield_bits, bits) = if holder.has_bitfields {
                (raw >> 24, raw & 0xff_ffff)
            } else {
                (0, raw)
            };
            let bits = u64::from(bits);
            if self.is_named(found, name) {
                return Some(Place {
                    bits,
                    type_id,
                    bitfield_bits,
                });
            }
            if !self.is_named(found, "") {
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
        let common = self
            .data
            .get(at..)
            .and_then(|rest| rest.first_chunk::<12>());
        let common = common.ok_or(BtfError::Truncated {
            part: "type record",
            at,
        })?;
        let [name, info, size_or_type]: [u32; 3] = zerocopy::transmute!(*common);
        Ok(Type {
            body: at + 12,
            name,
            kind: (info >> 24 & 0x1f) as u8,
            length: (info & 0xffff) as usize,
            has_bitfields: info >> 31 == 1,
            size_or_type,
        })
    }

    /// The strings from this offset on, of which the first is meant; empty when it points nowhere.
    fn rest(&self, offset: u32) -> &'data [u8] {
        self.strings.get(offset as usize..).unwrap_or(&[])
    }

    /// Whether this is the name at the offset. An offset that points nowhere is the empty name.
    fn is_named(&self, offset: u32, name: &str) -> bool {
        let rest = self.rest(offset).strip_prefix(name.as_bytes());
        rest.is_some_and(|rest| rest.first().is_none_or(|byte| *byte == 0))
    }
}

#[cfg(test)]
mod tests;
