//! Errors of the API's validation, with the texts of `k8s.io/apimachinery/pkg/util/validation/field`.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

/// What kind of error it is; the names are the API's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorKind {
    /// A value that another field has already.
    Duplicate,
    /// A field that may not be set.
    Forbidden,
    /// A value that is malformed or out of bounds.
    Invalid,
    /// A reference to something that is not there.
    NotFound,
    /// A value beyond the known ones.
    NotSupported,
    /// A field that has to be set.
    Required,
}

impl ErrorKind {
    /// The cause's type in the API's answer.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::Invalid => "FieldValueInvalid",
            Self::NotFound => "FieldValueNotFound",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Required => "FieldValueRequired",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::Invalid => "Invalid value",
            Self::NotFound => "Not found",
            Self::NotSupported => "Unsupported value",
            Self::Required => "Required value",
        }
    }
}

/// One error of the API's validation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// What kind of error it is.
    pub kind: ErrorKind,
    /// The field, such as `spec.limits[0].min[cpu]`.
    pub field: String,
    /// What is wrong, without the field.
    pub body: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body)
    }
}

impl std::error::Error for FieldError {}

impl FieldError {
    fn new(kind: ErrorKind, field: impl Into<String>, value: &str, detail: &str) -> Self {
        let mut body = kind.words().to_owned();
        for part in [value, detail] {
            if !part.is_empty() {
                body.push_str(": ");
                body.push_str(part);
            }
        }
        Self {
            kind,
            field: field.into(),
            body,
        }
    }

    /// A malformed value. `value` is as it is shown: see [`quoted`], [`json_text`] and [`json_list`].
    pub fn invalid(field: impl Into<String>, value: &str, detail: &str) -> Self {
        Self::new(ErrorKind::Invalid, field, value, detail)
    }

    /// A field that may not be set.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new(ErrorKind::Forbidden, field, "", detail)
    }

    /// A field that has to be set.
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::new(ErrorKind::Required, field, "", detail)
    }

    /// A value that is there already.
    pub fn duplicate(field: impl Into<String>, value: &str) -> Self {
        Self::new(ErrorKind::Duplicate, field, value, "")
    }

    /// A reference to something that is not there.
    pub fn not_found(field: impl Into<String>, value: &str, detail: &str) -> Self {
        Self::new(ErrorKind::NotFound, field, value, detail)
    }

    /// A value beyond the supported ones.
    pub fn not_supported(field: impl Into<String>, value: &str, supported: &[&str]) -> Self {
        let supported: Vec<String> = supported.iter().map(|text| quoted(text)).collect();
        let detail = format!("supported values: {}", supported.join(", "));
        Self::new(ErrorKind::NotSupported, field, value, &detail)
    }
}

/// The errors in the order in which they are shown.
pub fn sorted(mut errors: Vec<FieldError>) -> Vec<FieldError> {
    errors.sort_by_cached_key(ToString::to_string);
    errors
}

/// Several texts as one, as upstream's `NewAggregate` prints them: each once, in brackets if there are several.
pub fn aggregate<T: fmt::Display>(errors: &[T]) -> String {
    let mut seen = BTreeSet::new();
    let mut texts = Vec::new();
    for error in errors {
        let text = error.to_string();
        if seen.insert(text.clone()) {
            texts.push(text);
        }
    }
    match texts.as_slice() {
        [only] => only.clone(),
        _ => format!("[{}]", texts.join(", ")),
    }
}

/// Go's `%q` of a text.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            // Writing to a String cannot fail.
            _ if c.is_ascii_control() => write!(quoted, "\\x{:02x}", u32::from(c)).unwrap_or(()),
            _ if is_printed(c) => quoted.push(c),
            _ if u32::from(c) > 0xffff => {
                write!(quoted, "\\U{:08x}", u32::from(c)).unwrap_or(());
            }
            _ => write!(quoted, "\\u{:04x}", u32::from(c)).unwrap_or(()),
        }
    }
    quoted.push('"');
    quoted
}

/// Go's `strconv.IsPrint`: letters, marks, numbers, punctuation, symbols and the ASCII space. Rust escapes all else,
/// too, and a mark only where it is the first.
fn is_printed(c: char) -> bool {
    let mut buffer = [b'x', 0, 0, 0, 0];
    let bytes = 1 + c.encode_utf8(&mut buffer[1..]).len();
    let text = std::str::from_utf8(&buffer[..bytes]);
    // Its escaped quotes are printed.
    c == '\'' || text.is_ok_and(|text| text.escape_debug().nth(1) == Some(c))
}

/// A text as Go's `json.Marshal` writes it: with `<`, `>` and `&` escaped.
pub fn json_text(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            '\u{8}' => json.push_str("\\b"),
            '\u{c}' => json.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..'\u{20}' => {
                write!(json, "\\u{:04x}", u32::from(c)).unwrap_or(());
            }
            _ => json.push(c),
        }
    }
    json.push('"');
    json
}

/// A list of texts as JSON; no list is `null`.
pub fn json_list(texts: Option<&[String]>) -> String {
    match texts {
        None => "null".to_owned(),
        Some(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| json_text(text)).collect();
            format!("[{}]", texts.join(","))
        }
    }
}

/// Go's `%f`.
pub fn float_text(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned()
    } else {
        format!("{value:.6}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_as_go_does() {
        assert_eq!(quoted("a\"b\\c\n\u{1}é "), "\"a\\\"b\\\\c\\n\\x01é \"");
        // As `strconv.Quote` of Go 1.27 has them.
        for (text, expected) in [
            ("\0\u{1b}\u{7f}", "\"\\x00\\x1b\\x7f\""),
            ("\u{80}\u{ad}\u{a0}", "\"\\u0080\\u00ad\\u00a0\""),
            ("\u{202e}\u{2028}\u{200b}", "\"\\u202e\\u2028\\u200b\""),
            ("\u{feff}\u{e000}\u{378}", "\"\\ufeff\\ue000\\u0378\""),
            ("\u{3000}\u{e0001}", "\"\\u3000\\U000e0001\""),
            // A mark, what stands for broken UTF-8, a symbol.
            ("\u{301}\u{fffd}\u{1f600}'", "\"\u{301}\u{fffd}\u{1f600}'\""),
        ] {
            assert_eq!(quoted(text), expected);
        }
        assert_eq!(
            json_text("a<b>&\n\u{1}"),
            "\"a\\u003cb\\u003e\\u0026\\n\\u0001\""
        );
        assert_eq!(json_list(None), "null");
        assert_eq!(json_list(Some(&[])), "[]");
    }

    #[test]
    fn an_aggregate_has_each_text_once() {
        assert_eq!(aggregate(&["a"]), "a");
        assert_eq!(aggregate(&["a", "a"]), "a");
        assert_eq!(aggregate(&["a", "b", "a"]), "[a, b]");
    }

    #[test]
    fn floats_are_printed_as_go_does() {
        assert_eq!(float_text(1.5), "1.500000");
        assert_eq!(float_text(f64::INFINITY), "+Inf");
    }
}
