//! Why files that were given are not used.

use std::fmt::Display;

/// Why nothing was made of the files.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// Files that are wrong.
    #[error("{nothing}, because the input is invalid:\n{errors}")]
    Invalid {
        /// What is not done, such as `no ranking`.
        nothing: &'static str,
        /// All messages, one a line.
        errors: String,
    },
    /// `-` twice.
    #[error("standard input can be read only once; write the other input to a file")]
    StdinTwice,
}

impl InputError {
    /// What is not done because of these errors.
    pub(crate) fn invalid(nothing: &'static str, errors: &[impl Display]) -> Self {
        let errors = lines(errors);
        Self::Invalid { nothing, errors }
    }
}

/// The errors, one a line.
pub(crate) fn lines(errors: &[impl Display]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
