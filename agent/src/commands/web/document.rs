//! A document that a page asks for, or why there is none.

use serde::Serialize;

/// Why there is no document: a sentence for the page.
pub(super) type Problem = String;

/// What is shown, as JSON.
pub(super) fn json(value: &impl Serialize) -> Result<String, Problem> {
    serde_json::to_string(value).map_err(|error| format!("the document cannot be written: {error}"))
}
