//! Names for frames, found when the session is over.
//!
//! Files are read one after the other through the descriptors that [`super::stacks`] kept, so that neither their
//! process nor their container needs to be there any more. Containers choose what is in them: each is read by a process
//! of its own ([`super::names`]), and one that is bad costs its own names and not the trace. What has no name is shown
//! as file and offset in brackets, never as a guess.
//!
//! **Shares.** All files together have a time and an amount of names. Each may take an equal part of what those before
//! it have left, and those with the fewest frames come first: what a file does not need goes to those that need more,
//! and no file takes what others need.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blazesym::MaybeDefault;
use blazesym::symbolize::source::{Kernel, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use plimsoll::host::panics;
use plimsoll::host::shown::Show as _;
use tracing::{debug, warn};

use super::names::demangle::name_of;
use super::names::{Names, NoNames, Reader, Share};
use super::stacks::{Frame, Stacks};

/// For all files together.
const TIME_MAX: Duration = Duration::from_secs(120);
/// For one file, however few there are.
const FILE_TIME_MAX: Duration = Duration::from_secs(10);

/// What a frame is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// A function, or in brackets what is known of one without a name. For figures that add up functions.
    pub(super) folded: Arc<str>,
    /// Where in its file a function is that has no name.
    offset: Option<u64>,
    /// Whether it is a function of the kernel.
    pub(super) is_kernel: bool,
}

impl Name {
    fn function(folded: Arc<str>, is_kernel: bool) -> Self {
        Self {
            folded,
            offset: None,
            is_kernel,
        }
    }

    /// The name with the offset of one that has none, which is then no other frame's of its file.
    pub(super) fn text(&self) -> Cow<'_, str> {
        match (self.offset, self.folded.strip_suffix(']')) {
            (Some(offset), Some(file)) => Cow::Owned(format!("{file}+{offset:#x}]")),
            _ => Cow::Borrowed(&self.folded),
        }
    }

    /// Whether other frames may have the same [`text`](Self::text).
    pub(super) fn is_shared(&self) -> bool {
        self.offset.is_none()
    }
}

/// Files that have no names, for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Nameless {
    /// How many.
    pub(super) files: u64,
    /// The path of one, as its process sees it.
    pub(super) example: String,
}

/// The frames of a file that could be opened.
struct FileFrames<'a> {
    path: &'a str,
    file: &'a File,
    /// Places among all frames, and offsets in the file.
    wanted: Vec<(usize, u64)>,
}

/// The names of all frames.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    names: Vec<Name>,
    /// Files without names, or without some, by the reason. Those that have no symbols are none of them.
    pub(super) nameless: BTreeMap<NoNames, Nameless>,
}

impl Symbols {
    /// Looks up every frame.
    pub(super) fn resolve(stacks: &Stacks) -> Self {
        let mut kernel: Vec<(usize, u64)> = Vec::new();
        let mut files: BTreeMap<u32, Vec<(usize, u64)>> = BTreeMap::new();
        let mut brackets = Brackets::default();
        let mut names: Vec<Name> = Vec::with_capacity(stacks.frames().len());
        for (index, frame) in stacks.frames().iter().enumerate() {
            match *frame {
                Frame::Kernel(address) => kernel.push((index, address)),
                Frame::File { module, offset } => {
                    files.entry(module).or_default().push((index, offset));
                }
                Frame::Area { .. } | Frame::Unknown => {}
            }
            names.push(brackets.without_name(stacks, *frame));
        }
        let mut symbols = Self {
            names,
            nameless: BTreeMap::new(),
        };
        let addresses: Vec<u64> = kernel.iter().map(|(_, address)| *address).collect();
        symbols.found(&kernel, true, of_kernel(&addresses));
        let mut opened: Vec<FileFrames<'_>> = Vec::new();
        for (module, wanted) in files {
            let module = &stacks.modules()[module as usize];
            match &module.file {
                Some(file) => opened.push(FileFrames {
                    path: &module.path,
                    file,
                    wanted,
                }),
                // It takes nothing of what the others share.
                None => symbols.missed(NoNames::NotOpened, &module.path),
            }
        }
        opened.sort_by_key(|of| of.wanted.len());
        symbols.read(&opened);
        symbols
    }

    fn read(&mut self, files: &[FileFrames<'_>]) {
        let (mut reader, mut names) = (Reader::new(), Names::default());
        let mut time = TIME_MAX;
        for (place, of) in files.iter().enumerate() {
            let left = files.len() - place;
            let share = Share {
                time: FILE_TIME_MAX.min(time / left as u32),
                bytes: names.share(left),
            };
            let offsets: Vec<u64> = of.wanted.iter().map(|(_, offset)| *offset).collect();
            let start = Instant::now();
            let answer = reader.look_up(of.file, &offsets, share, &mut names);
            time = time.saturating_sub(start.elapsed());
            match answer {
                Ok(found) => {
                    if found.is_cut {
                        self.missed(NoNames::Full, of.path);
                    }
                    self.found(&of.wanted, false, found.names);
                }
                Err(why) => self.missed(why, of.path),
            }
        }
    }

    fn found(&mut self, wanted: &[(usize, u64)], is_kernel: bool, found: Vec<Option<Arc<str>>>) {
        for ((index, _), name) in wanted.iter().zip(found) {
            if let Some(name) = name {
                self.names[*index] = Name::function(name, is_kernel);
            }
        }
    }

    fn missed(&mut self, why: NoNames, path: &str) {
        debug!(file = %path.shown(), %why, "no names");
        let nameless = self.nameless.entry(why).or_insert_with(|| Nameless {
            files: 0,
            example: path.to_owned(),
        });
        nameless.files += 1;
    }

    /// The name of a frame.
    pub(super) fn of(&self, frame: u32) -> &Name {
        // There is one for each frame of the stacks that these were made of.
        &self.names[frame as usize]
    }
}

/// One answer for each address, or none at all.
fn of_kernel(addresses: &[u64]) -> Vec<Option<Arc<str>>> {
    if addresses.is_empty() {
        return Vec::new();
    }
    let source = Source::Kernel(Kernel {
        kallsyms: MaybeDefault::Default,
        // Only what runs, not what lies about.
        vmlinux: MaybeDefault::None,
        ..Kernel::default()
    });
    let symbolizer = Symbolizer::new();
    let read = panics::guard(|| symbolizer.symbolize(&source, Input::AbsAddr(addresses)));
    match read {
        Ok(Ok(symbols)) => {
            let mut names = Names::default();
            let mut share = names.share(1);
            symbols
                .into_iter()
                .map(|symbol| match symbol {
                    Symbolized::Sym(symbol) => names.keep(&name_of(&symbol.name), &mut share),
                    Symbolized::Unknown(_) => None,
                })
                .collect()
        }
        Ok(Err(error)) => {
            debug!(%error, "no names of the kernel");
            Vec::new()
        }
        Err(_) => {
            warn!("no names of the kernel: reading them panicked, please report it");
            Vec::new()
        }
    }
}

/// What stands for a name, once for each file.
#[derive(Debug, Default)]
struct Brackets(HashMap<String, Arc<str>>);

impl Brackets {
    fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return Arc::clone(known);
        }
        let shared: Arc<str> = format!("[{text}]").into();
        self.0.insert(text.to_owned(), Arc::clone(&shared));
        shared
    }

    fn without_name(&mut self, stacks: &Stacks, frame: Frame) -> Name {
        let file_name = |module: u32| {
            let path = &stacks.modules()[module as usize].path;
            Path::new(path)
                .file_name()
                .map_or_else(|| path.into(), |name| name.to_string_lossy())
        };
        match frame {
            Frame::Kernel(_) => Name::function(self.shared("kernel"), true),
            Frame::File { module, offset } => Name {
                folded: self.shared(&file_name(module)),
                offset: Some(offset),
                is_kernel: false,
            },
            Frame::Area { module } => {
                let name = file_name(module);
                Name::function(self.shared(name.trim_matches(['[', ']'])), false)
            }
            Frame::Unknown => Name::function(self.shared("unknown"), false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_name_is_its_file_and_where_in_it() {
        let mut brackets = Brackets::default();
        let (one, other) = (brackets.shared("a]"), brackets.shared("a]"));
        assert!(Arc::ptr_eq(&one, &other));
        let name = Name {
            folded: one,
            offset: Some(16),
            is_kernel: false,
        };
        assert_eq!((&*name.folded, &*name.text()), ("[a]]", "[a]+0x10]"));
        let named = Name::function("main".into(), false);
        assert_eq!(
            (named.text(), named.is_shared()),
            (Cow::Borrowed("main"), true)
        );
    }
}
