//! Data in, words and pictures out.

pub(crate) mod admission;
pub(crate) mod arbitrate;
pub mod check;
pub mod explain;
pub mod place;
pub(crate) mod pod_words;
pub mod ranking_table;
pub(crate) mod rehearse;
pub(crate) mod svg;
pub mod table;
pub mod top;
pub mod topology;

use std::io;

use crate::host::output::{Document, StdoutError, json};

/// A value in a form for programs.
pub(crate) fn document(form: Document, value: &serde_json::Value) -> Result<String, StdoutError> {
    Ok(match form {
        Document::Yaml => serde_saphyr::to_string(value).map_err(io::Error::other)?,
        Document::Text | Document::Json => json(value)?,
    })
}
