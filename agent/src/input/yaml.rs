//! YAML and JSON text as a tree in which every value knows its line.
//!
//! Manifests are walked by their field check and handed on as JSON, which is also how the API server reads YAML; of a
//! configuration all errors are named by line and field. A deserializer that fills a struct stops at the first error
//! and forgets the lines.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{DuplicateKeyPolicy, Error, Spanned};

/// Levels of nesting at most: the deepest field of a Pod has fourteen. The parser recurses, so this also bounds its
/// stack.
const DEPTH_MAX: usize = 32;
/// Documents in one file, at least: those beyond the bound on pods are counted, not refused by the parser.
const DOCUMENTS_MAX: usize = 1024;
/// Bytes of texts that are read in any case; of a longer file as many as it has.
const TEXTS_MAX: usize = 64 << 20;
/// Values that aliases may add, so that a few lines cannot become millions.
const NODES_FROM_ALIASES_MAX: usize = 10_000;

/// What a text may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Values.
    pub(crate) nodes: usize,
    /// Documents; [`DOCUMENTS_MAX`] are read in any case.
    pub(crate) documents: usize,
    /// Whether a map may have a key twice; then both are in the tree.
    pub(crate) repeated_keys: bool,
}

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// Line in the file, from 1.
    pub(crate) line: u64,
    pub(crate) value: Value,
}

/// What a value is.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text(String),
    List(Vec<Node>),
    /// In the text's order.
    Map(Vec<(Key, Node)>),
}

/// A field's name and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) line: u64,
    pub(crate) name: String,
}

/// Why text is no YAML.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    /// 0 when the parser does not know.
    pub(crate) line: u64,
    pub(crate) what: String,
}

/// All documents of a text; empty ones are left out.
pub(crate) fn documents(text: &str, limits: Limits) -> Result<Vec<Node>, SyntaxError> {
    let duplicate_keys = match limits.repeated_keys {
        true => DuplicateKeyPolicy::LastWins,
        false => DuplicateKeyPolicy::Error,
    };
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: DEPTH_MAX, max_nodes: limits.nodes,
            // Every value is an event, every object and list two.
            max_events: limits.nodes.saturating_mul(3), max_documents: limits.documents.max(DOCUMENTS_MAX),
            max_total_scalar_bytes: text.len().max(TEXTS_MAX) },
        duplicate_keys: duplicate_keys,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: NODES_FROM_ALIASES_MAX },
    };
    let documents: Vec<Spanned<Value>> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| {
            let line = error.location().map_or(0, |location| location.line());
            let what = match error.without_snippet() {
                Error::Budget { breach, .. } => too_much(breach),
                // The parser's first line is the reason; a picture of the text may follow.
                error => error
                    .to_string()
                    .lines()
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            };
            SyntaxError { line, what }
        })?;
    Ok(documents
        .into_iter()
        .map(Node::from)
        .filter(|node| !matches!(node.value, Value::Null))
        .collect())
}

/// What a file has too much of.
fn too_much(breach: &BudgetBreach) -> String {
    match breach {
        BudgetBreach::Depth { .. } => {
            format!("lists and maps are nested more than {DEPTH_MAX} deep; take some levels out")
        }
        BudgetBreach::Aliases { .. }
        | BudgetBreach::Anchors { .. }
        | BudgetBreach::MergeKeys { .. }
        | BudgetBreach::AliasAnchorRatio { .. } => {
            "more anchors and aliases than are followed; write the values out".to_owned()
        }
        _ => "more documents, values or text than are read of one file; make several files of it"
            .to_owned(),
    }
}

impl From<Spanned<Value>> for Node {
    fn from(spanned: Spanned<Value>) -> Self {
        Self {
            line: spanned.referenced.line(),
            value: spanned.value,
        }
    }
}

impl Node {
    /// The value of a field, when this is a map and has it.
    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        self.fields()
            .iter()
            .find(|(key, _)| key.name == name)
            .map(|(_, value)| value)
            .filter(|node| !node.is_null())
    }

    /// The fields, none when this is no map.
    pub(crate) fn fields(&self) -> &[(Key, Self)] {
        if let Value::Map(fields) = &self.value {
            fields
        } else {
            &[]
        }
    }

    /// The items, none when this is no list.
    pub(crate) fn items(&self) -> &[Self] {
        if let Value::List(items) = &self.value {
            items
        } else {
            &[]
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        if let Value::Text(text) = &self.value {
            Some(text)
        } else {
            None
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// What this is, for an error.
    pub(crate) fn kind(&self) -> String {
        match &self.value {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => format!("the boolean {value}"),
            Value::Number(number) => format!("the number {number}"),
            Value::Text(text) => format!("the text {text:?}"),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "an object".to_owned(),
        }
    }

    pub(crate) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => serde_json::Value::Bool(*value),
            Value::Number(number) => serde_json::Value::Number(number.clone()),
            Value::Text(text) => serde_json::Value::String(text.clone()),
            Value::List(items) => {
                serde_json::Value::Array(items.iter().map(Self::to_json).collect())
            }
            Value::Map(fields) => serde_json::Value::Object(
                fields
                    .iter()
                    .map(|(key, value)| (key.name.clone(), value.to_json()))
                    .collect(),
            ),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a YAML value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        serde_json::Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("not a finite number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::Text(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element::<Spanned<Value>>()? {
            items.push(item.into());
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(key) = access.next_key::<Spanned<String>>()? {
            let value = access.next_value::<Spanned<Value>>()?;
            fields.push((
                Key {
                    line: key.referenced.line(),
                    name: key.value,
                },
                value.into(),
            ));
        }
        Ok(Value::Map(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(text: &str) -> Result<Vec<Node>, SyntaxError> {
        let limits = Limits {
            nodes: 100_000,
            documents: 256,
            repeated_keys: false,
        };
        super::documents(text, limits)
    }

    #[test]
    fn every_value_knows_its_line() {
        let text =
            "# a comment\na: 1\nb:\n  - x\n  - {c: 0.5, d: true, e: null}\n---\n---\nf: \"1\"\n";
        let [first, second] = documents(text).unwrap().try_into().unwrap();
        assert_eq!(first.fields()[1].0.line, 3);
        let list = first.get("b").unwrap().items();
        assert_eq!((list[0].line, list[1].line), (4, 5));
        assert!(list[1].get("e").is_none(), "null is absent");
        assert_eq!(
            first.to_json(),
            serde_json::json!({"a": 1, "b": ["x", {"c": 0.5, "d": true, "e": null}]})
        );
        assert_eq!(
            (
                second.get("f").unwrap().line,
                second.get("f").unwrap().text()
            ),
            (8, Some("1"))
        );
    }

    #[test]
    fn json_with_tabs_is_read() {
        let [document] = documents("{\n\t\"a\": [\n\t\t1,\n\t\t2\n\t]\n}\n")
            .unwrap()
            .try_into()
            .unwrap();
        assert_eq!(document.to_json(), serde_json::json!({"a": [1, 2]}));
        assert_eq!(document.get("a").unwrap().items()[1].line, 4);
    }

    #[test]
    fn errors_know_their_line() {
        for (text, line) in [
            ("a: 1\nb: [1\n", 3),
            ("a: 1\na: 2\n", 2),
            ("a:\n  b: 1\n c: 2\n", 3),
        ] {
            let error = documents(text).unwrap_err();
            assert!(
                error.line.abs_diff(line) <= 1 && !error.what.is_empty(),
                "{text:?}: {error:?}"
            );
        }
    }

    #[test]
    fn deep_nesting_is_refused() {
        for depth in [DEPTH_MAX + 1, 1000, 100_000] {
            for (open, close) in [("[", "]"), ("{a: ", "}"), ("- ", "")] {
                let error = documents(&format!("{}1{}", open.repeat(depth), close.repeat(depth)))
                    .unwrap_err();
                assert!(!error.what.is_empty());
            }
        }
        let text = format!(
            "{}1{}",
            "[".repeat(DEPTH_MAX - 2),
            "]".repeat(DEPTH_MAX - 2)
        );
        assert_eq!(documents(&text).unwrap().len(), 1);
    }

    #[test]
    fn what_is_too_much_is_said_in_words() {
        let deep = "[".repeat(DEPTH_MAX + 1) + &"]".repeat(DEPTH_MAX + 1);
        let many = format!("[{}]", vec!["1"; 10_000].join(", "));
        let limits = Limits {
            nodes: 5_000,
            documents: 1,
            repeated_keys: false,
        };
        for (text, words) in [
            (deep, "nested more than 32 deep"),
            (many, "make several files"),
        ] {
            let error = super::documents(&text, limits).unwrap_err();
            assert!(error.what.contains(words), "{error:?}");
        }
    }

    #[test]
    fn a_long_file_has_long_texts() {
        let text = format!("a: {}", "x".repeat(TEXTS_MAX + 1));
        assert_eq!(documents(&text).unwrap().len(), 1);
    }

    #[test]
    fn aliases_do_not_multiply() {
        let mut text = String::from("a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n");
        for level in 1..12 {
            let alias = format!("*a{}", level - 1);
            text += &format!("a{level}: &a{level} [{}]\n", vec![alias; 10].join(", "));
        }
        assert!(!documents(&text).unwrap_err().what.is_empty());
    }
}
