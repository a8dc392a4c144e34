//! The BPF objects inside this program.
//!
//! `build.rs` copies what `cargo xtask build-ebpf` made; a build without them carries empty objects, so that plain
//! `cargo build` needs no BPF toolchain.

use super::digest::sha256;

/// The ELF parser reads headers in place and wants them aligned as in a mapped file.
#[repr(C, align(8))]
struct Aligned<Bytes: ?Sized>(Bytes);

/// The object's bytes, 8-byte aligned; empty when this program was built without it.
pub static OBJECT: &[u8] = {
    static EMBEDDED: &Aligned<[u8]> =
        &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/plimsoll.bpf.o")));
    &EMBEDDED.0
};

/// The object of tracing sessions, likewise.
static SAMPLING: &[u8] = {
    static EMBEDDED: &Aligned<[u8]> =
        &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/sampling.bpf.o")));
    &EMBEDDED.0
};

/// This program was built before the BPF object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this plimsoll was built without its BPF object, so it cannot see what happens inside the kernel: \
     run `cargo xtask build-ebpf` and build again"
)]
pub struct ObjectMissing;

/// The object to load into the kernel.
///
/// # Errors
/// [`ObjectMissing`] when this program was built without it.
pub fn object() -> Result<&'static [u8], ObjectMissing> {
    there(OBJECT)
}

/// The object to load into the kernel for a tracing session.
///
/// # Errors
/// [`ObjectMissing`] when this program was built without it.
pub fn sampling_object() -> Result<&'static [u8], ObjectMissing> {
    there(SAMPLING)
}

/// An object in this program: its name, as `cargo xtask build-ebpf` leaves it, and what it is exactly.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Embedded {
    /// The file's name.
    pub name: &'static str,
    /// Its SHA-256, in hexadecimal. `None`: this program was built without it.
    pub sha256: Option<String>,
}

/// The objects in this program.
pub fn embedded() -> [Embedded; 2] {
    [("plimsoll.bpf.o", OBJECT), ("sampling.bpf.o", SAMPLING)].map(|(name, object)| Embedded {
        name,
        sha256: there(object).ok().map(sha256),
    })
}

fn there(object: &'static [u8]) -> Result<&'static [u8], ObjectMissing> {
    if object.is_empty() {
        Err(ObjectMissing)
    } else {
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_are_aligned_elf_files_or_named_missing() {
        for object in [object(), sampling_object()] {
            match object {
                Ok(bytes) => {
                    assert!(bytes.starts_with(b"\x7fELF"));
                    assert!(bytes.as_ptr().addr().is_multiple_of(8));
                }
                Err(missing) => assert!(missing.to_string().contains("cargo xtask build-ebpf")),
            }
        }
        for (embedded, object) in embedded().iter().zip([object(), sampling_object()]) {
            assert_eq!(
                embedded.sha256,
                object.ok().map(sha256),
                "{}",
                embedded.name
            );
        }
    }
}
