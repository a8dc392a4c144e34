//! Names for frames, found when the session is over.
//!
//! Files are read one after the other through the descriptors that [`super::stacks`] kept, so that neither their process nor their container
//! needs to be there any more, and no more than one file's symbols are in memory. What has no name is shown as file and offset in brackets,
//! never as a guess.

use std::collections::HashMap;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use blazesym::MaybeDefault;
use blazesym::symbolize::source::{Elf, Kernel, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use plimsoll::host::panics;
use plimsoll::host::shown::Show as _;
use tracing::{debug, warn};

use super::stacks::{Frame, Stacks};

/// Larger files are left without names: their symbols alone may be more than the machine has to spare.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// What a frame is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// A function, or in brackets what is known of one without a name.
    pub(super) text: String,
    /// The same for figures that add up functions: without the offset of one that has no name.
    pub(super) folded: String,
    /// Whether it is a function of the kernel.
    pub(super) is_kernel: bool,
}

impl Name {
    fn function(name: String, is_kernel: bool) -> Self {
        Self {
            folded: name.clone(),
            text: name,
            is_kernel,
        }
    }
}

/// The names of all frames.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    names: Vec<Name>,
}

impl Symbols {
    /// Looks up every frame.
    pub(super) fn resolve(stacks: &Stacks) -> Self {
        let mut kernel: Vec<(usize, u64)> = Vec::new();
        let mut files: HashMap<u32, Vec<(usize, u64)>> = HashMap::new();
        let mut names: Vec<Name> = Vec::with_capacity(stacks.frames().len());
        for (index, frame) in stacks.frames().iter().enumerate() {
            match *frame {
                Frame::Kernel(address) => kernel.push((index, address)),
                Frame::File { module, offset } => {
                    files.entry(module).or_default().push((index, offset));
                }
                Frame::Area { .. } | Frame::Unknown => {}
            }
            names.push(without_name(stacks, *frame));
        }
        let mut found = |wanted: &[(usize, u64)], is_kernel, symbols: Vec<Option<String>>| {
            for ((index, _), symbol) in wanted.iter().zip(symbols) {
                if let Some(symbol) = symbol {
                    names[*index] = Name::function(symbol, is_kernel);
                }
            }
        };
        if !kernel.is_empty() {
            let source = Source::Kernel(Kernel {
                kallsyms: MaybeDefault::Default,
                // Only what runs, not what lies about.
                vmlinux: MaybeDefault::None,
                ..Kernel::default()
            });
            let addresses: Vec<u64> = kernel.iter().map(|(_, address)| *address).collect();
            found(
                &kernel,
                true,
                look_up(&source, Input::AbsAddr(&addresses), "the kernel"),
            );
        }
        for (module, wanted) in &files {
            let module = &stacks.modules()[*module as usize];
            let Some(file) = &module.file else { continue };
            if file
                .metadata()
                .is_ok_and(|metadata| metadata.len() > FILE_BYTES_MAX)
            {
                debug!(file = module.path, "too large to be read for symbols");
                continue;
            }
            let elf = Elf::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
            let offsets: Vec<u64> = wanted.iter().map(|(_, offset)| *offset).collect();
            found(
                wanted,
                false,
                look_up(&Source::Elf(elf), Input::FileOffset(&offsets), &module.path),
            );
        }
        Self { names }
    }

    /// The name of a frame.
    pub(super) fn of(&self, frame: u32) -> &Name {
        // There is one for each frame of the stacks that these were made of.
        &self.names[frame as usize]
    }
}

/// One answer for each address; a file that cannot be read has none. Containers choose what is in their files: one that makes blazesym panic costs its
/// own names and not the trace.
fn look_up(source: &Source<'_>, input: Input<&[u64]>, of: &str) -> Vec<Option<String>> {
    // One for each file, so that what it has read goes with it.
    let symbolizer = Symbolizer::new();
    let read = panics::guard(|| symbolizer.symbolize(source, input));
    let Ok(symbols) = read else {
        warn!(of = %of.shown(), "no names: reading its symbols panicked, please report the file");
        return Vec::new();
    };
    match symbols {
        Ok(symbols) => symbols
            .into_iter()
            .map(|symbol| match symbol {
                Symbolized::Sym(symbol) => Some(symbol.name.into_owned()),
                Symbolized::Unknown(_) => None,
            })
            .collect(),
        Err(error) => {
            debug!(of, %error, "no symbols");
            Vec::new()
        }
    }
}

fn without_name(stacks: &Stacks, frame: Frame) -> Name {
    let file_name = |module: u32| {
        let path = &stacks.modules()[module as usize].path;
        Path::new(path)
            .file_name()
            .map_or_else(|| path.clone(), |name| name.to_string_lossy().into_owned())
    };
    match frame {
        Frame::Kernel(_) => Name::function("[kernel]".to_owned(), true),
        Frame::File { module, offset } => {
            let file = file_name(module);
            Name {
                text: format!("[{file}+{offset:#x}]"),
                folded: format!("[{file}]"),
                is_kernel: false,
            }
        }
        Frame::Area { module } => {
            let name = file_name(module);
            Name::function(format!("[{}]", name.trim_matches(['[', ']'])), false)
        }
        Frame::Unknown => Name::function("[unknown]".to_owned(), false),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// An ELF file of one segment, which would end beyond the largest offset: what `cargo xtask fuzz-parsers symbols` found in blazesym 0.2.7.
    fn overflowing() -> tempfile::NamedTempFile {
        let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        elf.extend([3, 0, 62, 0, 1, 0, 0, 0]); // shared object, x86-64, version 1
        for word in [0_u64, 64, 0] {
            elf.extend(word.to_le_bytes()); // entry, program headers, section headers
        }
        elf.extend([0; 4]);
        for half in [64_u16, 56, 1, 64, 0, 0] {
            elf.extend(half.to_le_bytes()); // sizes and numbers of the headers
        }
        elf.extend([1, 0, 0, 0, 5, 0, 0, 0]); // PT_LOAD, readable and executable
        for word in [u64::MAX, 0, 0, 2, 2, 8] {
            elf.extend(word.to_le_bytes()); // offset, addresses, sizes in file and memory, alignment
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&elf).unwrap();
        file
    }

    #[test]
    fn a_file_that_makes_the_reader_panic_costs_its_own_names() {
        let file = overflowing();
        let source = Source::Elf(Elf::new(file.path()));
        let names = look_up(&source, Input::FileOffset(&[0x1000]), "library.so");
        assert!(names.iter().all(Option::is_none), "{names:?}");
    }
}
