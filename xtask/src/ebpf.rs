//! `cargo xtask build-ebpf`: one BPF object for all kernels, and what each program costs in instructions.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context as _, Result};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SectionKind, SymbolKind};

use crate::lock::Lock;
use crate::process;
use crate::progress::{Step, say};
use crate::{paths, remap, setup};

/// Bytes of one BPF instruction.
const INSTRUCTION_BYTES: u64 = 8;
const TARGET: &str = "bpfel-unknown-none";
const BINARY: &str = "plimsoll-ebpf";
/// The programs of `plimsoll trace`.
const SAMPLING: &str = "sampling";
/// The bare ring buffer that `bench signals` compares with.
const PING: &str = "ping";

/// One function in the object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The function's name.
    name: String,
    /// The ELF section, which says what it attaches to; `.text` holds functions called by programs.
    section: String,
    /// How many instructions it has; the verifier walks more.
    instructions: u64,
}

/// Builds the object and copies it to `target/bpf/plimsoll.bpf.o`, and those of tracing sessions and of the benchmarks
/// beside it. Quick when nothing changed.
pub(crate) fn build() -> Result<Vec<Program>> {
    let nightly = setup::nightly()?;
    let mut cargo = cargo(&nightly, "build")?;
    let step = Step::begin("build-ebpf", format_args!("{TARGET}, build-std=core"));
    let output = process::run_cargo(cargo.args(["--release", "--bins"]), &step)?;
    process::success(
        &cargo,
        &output,
        &format!(
            "if the linker could not read the bitcode, this nightly's LLVM is newer than bpf-linker's: run \
             `rustup toolchain install {} --profile minimal` and this command again",
            setup::NIGHTLY_PINNED
        ),
    )?;
    step.done();
    let warnings = output.stderr();
    if warnings.contains("warning") {
        say("build-ebpf", warnings.trim_end());
    }
    let _lock = Lock::take(&paths::target("ebpf"))?;
    install(&nightly, PING, &paths::ping_object())?;
    let mut all = Vec::new();
    for (binary, path) in [
        (BINARY, paths::bpf_object()),
        (SAMPLING, paths::sampling_object()),
    ] {
        let bytes = install(&nightly, binary, &path)?;
        all.extend(programs(&bytes).with_context(|| format!("cannot parse {binary}"))?);
    }
    Ok(all)
}

/// Builds the object with log lines and copies it to `target/bpf/plimsoll-log.bpf.o`. It is never embedded.
pub(crate) fn build_with_log() -> Result<PathBuf> {
    let nightly = setup::nightly()?;
    let mut cargo = cargo(&nightly, "build")?;
    let step = Step::begin("build-ebpf", "the object with log lines");
    let ended = process::run_cargo(
        cargo.args(["--release", "--bin", BINARY, "--features", "log"]),
        &step,
    )?;
    process::success(&cargo, &ended, "run `cargo xtask build-ebpf` first")?;
    step.done();
    let _lock = Lock::take(&paths::target("ebpf"))?;
    let object = paths::log_object();
    install(&nightly, BINARY, &object)?;
    Ok(object)
}

/// Copies what was built, without its DWARF, to where it is looked for: DWARF only serves to make the BTF, is most of
/// the file, and the agent keeps all of its own file in locked memory. An unchanged object keeps its time stamp, so
/// that the agent is not built again for nothing.
fn install(nightly: &str, binary: &str, object: &Path) -> Result<Vec<u8>> {
    let built = paths::target("ebpf")
        .join(TARGET)
        .join("release")
        .join(binary);
    let folder = paths::target("bpf");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let partial = paths::target("bpf.o.partial");
    process::output_of(
        setup::nightly_objcopy(nightly)?
            .arg("--strip-debug")
            .args([&built, &partial]),
        "the BPF object that was built could not be stripped: run `cargo clean --manifest-path ebpf/Cargo.toml --target-dir target/ebpf`, \
         and this command again",
    )?;
    let bytes = fs::read(&partial).with_context(|| format!("cannot read {}", partial.display()))?;
    if fs::read(object).ok().as_deref() != Some(bytes.as_slice()) {
        fs::rename(&partial, object)
            .with_context(|| format!("cannot write {}", object.display()))?;
    }
    Ok(bytes)
}

/// Checks the BPF crate with clippy, warnings as errors; `Err` carries clippy's words.
pub(crate) fn clippy(step: &Step) -> Result<()> {
    let mut cargo = cargo(&setup::nightly()?, "clippy")?;
    let arguments = ["--release", "--bins", "--", "-D", "warnings"];
    let ended = process::run_cargo(cargo.args(arguments), step)?;
    process::success(&cargo, &ended, "see CONTRIBUTING.md")
}

/// `cargo VERB` for the BPF crate with the nightly. Target, linker and flags are in `ebpf/.cargo/config.toml`, which
/// cargo finds from the crate's folder, so that an editor builds it the same way. The flags of [`remap`] are added: BTF
/// names source files, and the object is to be the same one in each folder.
fn cargo(nightly: &str, verb: &str) -> Result<Command> {
    let linker = setup::bpf_linker()?;
    let flags = remap::flags(&setup::sysroot(Some(nightly))?)?;
    let flags = serde_json::to_string(&flags).context("paths that are no text")?;
    let own_path = env::var_os("PATH").unwrap_or_default();
    let folders = linker.parent().map(Path::to_owned).into_iter();
    let path = env::join_paths(folders.chain(env::split_paths(&own_path)))
        .context("the workspace's path has a `:`, which PATH cannot carry: move the project")?;
    let mut command = Command::new("rustup");
    command
        .args([
            "run",
            nightly,
            "cargo",
            "--config",
            &format!("build.rustflags={flags}"),
            verb,
            "--locked",
            "--target",
            TARGET,
            "--target-dir",
        ])
        .arg(paths::target("ebpf"))
        .env("PATH", path)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC")
        .env_remove("RUSTUP_TOOLCHAIN")
        .current_dir(paths::root().join("ebpf"));
    // Meant for the programs: they would make other instructions, and another digest.
    for (name, _) in env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PROFILE_"))
        {
            command.env_remove(name);
        }
    }
    Ok(command)
}

/// The functions of a BPF object, by section and name.
fn programs(object: &[u8]) -> Result<Vec<Program>> {
    let file = object::File::parse(object).context("not an ELF file")?;
    let mut programs = Vec::new();
    for symbol in file.symbols() {
        let (Some(index), SymbolKind::Text) = (symbol.section_index(), symbol.kind()) else {
            continue;
        };
        let section = file.section_by_index(index)?;
        if section.kind() != SectionKind::Text || symbol.size() == 0 {
            continue;
        }
        programs.push(Program {
            name: symbol.name()?.to_owned(),
            section: section.name()?.to_owned(),
            instructions: symbol.size() / INSTRUCTION_BYTES,
        });
    }
    programs.sort_by(|a, b| (&a.section, &a.name).cmp(&(&b.section, &b.name)));
    Ok(programs)
}

/// The programs as an aligned table with a total.
pub(crate) fn table(programs: &[Program]) -> String {
    let width = |heading: &str, text: fn(&Program) -> &str| {
        programs
            .iter()
            .map(|program| text(program).len())
            .max()
            .unwrap_or(0)
            .max(heading.len())
    };
    let name_width = width("program", |program| &program.name);
    let section_width = width("section", |program| &program.section);
    let mut table = format!(
        "{:name_width$}  {:section_width$}  instructions\n",
        "program", "section"
    );
    for Program {
        name,
        section,
        instructions,
    } in programs
    {
        table.push_str(&format!(
            "{name:name_width$}  {section:section_width$}  {instructions:>12}\n"
        ));
    }
    let total: u64 = programs.iter().map(|program| program.instructions).sum();
    table.push_str(&format!(
        "{:name_width$}  {:section_width$}  {total:>12}\n",
        "total", ""
    ));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A relocatable BPF ELF file with one section `fentry/f` of two instructions and its function symbol `arm`.
    fn tiny_object() -> Vec<u8> {
        const SECTION_NAMES: &[u8] = b"\0fentry/f\0.symtab\0.strtab\0";
        const SYMBOL_NAMES: &[u8] = b"\0arm\0";
        let mut code = vec![0_u8; 16];
        code[8] = 0x95;
        let mut symbols = vec![0_u8; 24];
        symbols.extend(1_u32.to_le_bytes()); // st_name
        symbols.extend([0x12, 0]); // global function
        symbols.extend(1_u16.to_le_bytes()); // section 1
        symbols.extend(0_u64.to_le_bytes());
        symbols.extend(16_u64.to_le_bytes());

        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        file.extend([1, 0, 247, 0, 1, 0, 0, 0]); // relocatable, EM_BPF, version 1
        file.extend([0; 16]); // entry, program headers
        let offsets = [
            64,
            64 + 16,
            64 + 16 + 48,
            64 + 16 + 48 + SECTION_NAMES.len(),
        ];
        let headers_at = (offsets[3] + SYMBOL_NAMES.len()).next_multiple_of(8);
        file.extend((headers_at as u64).to_le_bytes());
        file.extend([0; 4]);
        for value in [64_u16, 0, 0, 64, 5, 3] {
            file.extend(value.to_le_bytes());
        }
        file.extend(&code);
        file.extend(&symbols);
        file.extend(SECTION_NAMES);
        file.extend(SYMBOL_NAMES);
        file.resize(headers_at, 0);
        let mut header = |name: u32,
                          kind: u32,
                          flags: u64,
                          offset: usize,
                          size: usize,
                          link: u32,
                          info: u32,
                          entry: u64| {
            file.extend(name.to_le_bytes());
            file.extend(kind.to_le_bytes());
            file.extend(flags.to_le_bytes());
            file.extend(0_u64.to_le_bytes());
            file.extend((offset as u64).to_le_bytes());
            file.extend((size as u64).to_le_bytes());
            file.extend(link.to_le_bytes());
            file.extend(info.to_le_bytes());
            file.extend(8_u64.to_le_bytes());
            file.extend(entry.to_le_bytes());
        };
        header(0, 0, 0, 0, 0, 0, 0, 0);
        header(1, 1, 6, offsets[0], code.len(), 0, 0, 0); // fentry/f: alloc, exec
        header(10, 2, 0, offsets[1], symbols.len(), 4, 1, 24);
        header(18, 3, 0, offsets[2], SECTION_NAMES.len(), 0, 0, 0);
        header(18, 3, 0, offsets[3], SYMBOL_NAMES.len(), 0, 0, 0);
        file
    }

    #[test]
    fn programs_and_their_instruction_counts() {
        let programs = programs(&tiny_object()).unwrap();
        let expected = Program {
            name: "arm".to_owned(),
            section: "fentry/f".to_owned(),
            instructions: 2,
        };
        assert_eq!(programs, [expected]);
        assert_eq!(
            table(&programs),
            "program  section   instructions\n\
             arm      fentry/f             2\n\
             total                         2\n"
        );
    }

    #[test]
    fn other_files_are_refused() {
        assert!(programs(b"not an object").is_err());
    }
}
