//! A configuration as a tree that knows where each value comes from.
//!
//! Problem: values come from a file, from flags and from defaults; errors have to name line and field, all of them at
//! once, and `config print` has to say where each value comes from. Approach: the text ([`crate::input::yaml`]) becomes
//! a tree of [`Node`]s, flags and defaults are put into it, and tables ([`super::schema`]) say what it may hold.

use std::fmt;

use crate::input::yaml::{self, Limits};

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It was not given.
    Default,
    /// The configuration file, at this line (from 1).
    File {
        /// The line.
        line: u64,
    },
    /// A flag, with its name without dashes.
    Flag(&'static str),
}

/// A value and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Where it comes from.
    pub origin: Origin,
}

/// What a file can hold.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`, or nothing after the colon.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i128),
    /// A number with a fraction or an exponent.
    Float(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A map, in the order in which it is written.
    Map(Vec<Entry>),
}

/// One entry of a map.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key stands.
    pub origin: Origin,
    /// The value.
    pub node: Node,
}

impl Value {
    /// What it is, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "a boolean",
            Self::Integer(_) | Self::Float(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }
}

/// A scalar as it would be written; lists and maps by what they are.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::List(_) | Self::Map(_) => f.write_str(self.kind()),
        }
    }
}

impl Entry {
    /// One that was not given.
    pub fn default_of(key: &str, value: Value) -> Self {
        Self {
            key: key.to_owned(),
            origin: Origin::Default,
            node: Node::default_of(value),
        }
    }
}

impl Node {
    /// A value that was not given.
    pub fn default_of(value: Value) -> Self {
        Self {
            value,
            origin: Origin::Default,
        }
    }

    /// The entry with this key, if this is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(entries) => entries
                .iter()
                .find(|entry| entry.key == key)
                .map(|entry| &entry.node),
            _ => None,
        }
    }

    /// Gives this node and everything below it one origin.
    pub fn set_origin(&mut self, origin: Origin) {
        self.origin = origin;
        match &mut self.value {
            Value::List(items) => items.iter_mut().for_each(|item| item.set_origin(origin)),
            Value::Map(entries) => {
                for entry in entries {
                    entry.origin = origin;
                    entry.node.set_origin(origin);
                }
            }
            _ => {}
        }
    }
}

/// Why a text is no tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// The line, if it is known.
    pub line: Option<u64>,
    /// What is wrong.
    pub reason: String,
}

/// More than any configuration has, and few enough to read at once.
const LIMITS: Limits = Limits {
    nodes: 100_000,
    documents: 2,
    // So that all of them can be named.
    repeated_keys: true,
};

/// Reads one document. An empty one is an empty map.
///
/// # Errors
/// [`Malformed`] if it is neither YAML nor JSON, has a number that is none, or is more than one document.
pub fn parse(text: &str) -> Result<Node, Malformed> {
    let documents = yaml::documents(text, LIMITS).map_err(|error| Malformed {
        line: (error.line > 0).then_some(error.line),
        reason: without_location(&error.what),
    })?;
    let mut documents = documents.into_iter();
    let first = documents.next();
    if let Some(second) = documents.next() {
        return Err(Malformed {
            line: Some(second.line),
            reason: "a second document begins here: a configuration file holds one; keep the KubeletConfiguration alone".into(),
        });
    }
    Ok(first.map_or_else(|| Node::default_of(Value::Map(Vec::new())), Node::from))
}

/// The parser's message without its own place, which is said in our way.
fn without_location(message: &str) -> String {
    let end = message.find(" at line ").unwrap_or(message.len());
    message[..end].to_owned()
}

impl From<yaml::Node> for Node {
    fn from(node: yaml::Node) -> Self {
        let value = match node.value {
            yaml::Value::Null => Value::Null,
            yaml::Value::Bool(value) => Value::Bool(value),
            yaml::Value::Number(number) => match number.as_i128() {
                Some(whole) => Value::Integer(whole),
                None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            yaml::Value::Text(text) => Value::Text(text),
            yaml::Value::List(items) => Value::List(items.into_iter().map(Self::from).collect()),
            yaml::Value::Map(fields) => Value::Map(fields.into_iter().map(Entry::from).collect()),
        };
        Self {
            value,
            origin: Origin::File { line: node.line },
        }
    }
}

impl From<(yaml::Key, yaml::Node)> for Entry {
    fn from((key, node): (yaml::Key, yaml::Node)) -> Self {
        Self {
            key: key.name,
            origin: Origin::File { line: key.line },
            node: node.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_of(node: &Node) -> u64 {
        match node.origin {
            Origin::File { line } => line,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_value_knows_its_line() {
        let root = parse("# head\na: 1\nb:\n  c: 100Mi\n  d: [x, 0.5,\n      '7']\ne:\n").unwrap();
        let b = root.get("b").unwrap();
        assert_eq!(line_of(root.get("a").unwrap()), 2);
        assert_eq!(b.get("c").unwrap().value, Value::Text("100Mi".into()));
        assert_eq!(line_of(b.get("c").unwrap()), 4);
        let Value::List(items) = &b.get("d").unwrap().value else {
            panic!("{b:?}")
        };
        assert_eq!(items[1].value, Value::Float(0.5));
        assert_eq!(items[2].value, Value::Text("7".into()));
        assert_eq!(line_of(&items[2]), 6);
        assert_eq!(root.get("e").unwrap().value, Value::Null);
    }

    #[test]
    fn json_is_read_tabs_and_all() {
        let root = parse("{\n\t\"a\": 1,\n\t\"b\": {\n\t\t\"c\": null\n\t}\n}\n").unwrap();
        let c = root.get("b").unwrap().get("c").unwrap();
        assert_eq!((&c.value, line_of(c)), (&Value::Null, 4));
    }

    #[test]
    fn nothing_is_an_empty_map() {
        for text in ["", "# nothing\n", "---\n", "---\n---\n"] {
            assert_eq!(
                parse(text).unwrap().value,
                Value::Map(Vec::new()),
                "{text:?}"
            );
        }
        assert!(parse("---\na: 1\n---\n").is_ok());
    }

    #[test]
    fn a_second_document_is_refused_by_its_line() {
        let malformed = parse("a: 1\n---\nb: 2\n").unwrap_err();
        assert_eq!(malformed.line, Some(3));
        assert!(
            malformed.reason.contains("second document"),
            "{malformed:?}"
        );
    }

    #[test]
    fn what_is_no_yaml_is_refused_by_its_line() {
        for (text, line) in [
            ("a: [1\nb: 2\n", 2),
            ("a: 1\n b: 2\n", 2),
            ("a: {{.X}}\n", 1),
        ] {
            let malformed = parse(text).unwrap_err();
            assert_eq!(malformed.line, Some(line), "{malformed:?}");
            assert!(!malformed.reason.contains("line"), "{malformed:?}");
        }
    }
}
