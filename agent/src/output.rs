//! The two forms in which every command can answer.

use clap::ValueEnum;

/// For whom the answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Output {
    /// For people: lines and aligned tables.
    #[default]
    Text,
    /// For programs: one JSON object per line, or one document.
    Json,
}
