//! What a configuration file may hold: tables of fields, and the check of a tree against them.
//!
//! Problem: a KubeletConfiguration has some 130 fields, of which Plimsoll uses a part; each of them must be accepted, a
//! wrong one of that part must be named with its reason, and none that changes what Plimsoll does may be ignored in
//! silence. Approach: one row per field, with its shape, default, class and meaning. Check, print, and the reference in
//! `docs/` read the same rows.
//!
//! Terms: a field's *class* says what Plimsoll does with it. A *zero* is Go's: `0`, `""`, `0s`; in a field that is no
//! pointer in the kubelet's type it means the same as leaving the field out (`SetDefaults_KubeletConfiguration` of
//! 1.36).

use plimsoll_core::kube::duration;
use plimsoll_core::kube::quantity::Quantity;

use super::document::{Entry, Node, Origin, Value};
use super::problem::Problem;
use crate::input::spelling::nearest;

/// What Plimsoll does with a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// It acts on it.
    Used,
    /// It reads and validates it as the kubelet does, and does not act on it. Said aloud where it is set.
    NotActedOn,
    /// It concerns the kubelet alone: its server, its client, its own work.
    Kubelet,
}

impl Class {
    /// In one phrase, for tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::NotActedOn => "not acted on",
            Self::Kubelet => "not Plimsoll's",
        }
    }
}

/// What a value must look like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// `true` or `false`.
    Bool,
    /// A whole number in this range.
    Integer {
        /// The smallest.
        min: i64,
        /// The largest.
        max: i64,
    },
    /// A number.
    Number,
    /// A text.
    Text,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// A Go duration of at least zero.
    Duration,
    /// A quantity; a number is one, too.
    Quantity,
    /// A quantity or a percentage, as a text or a number; what it means is checked with its signal.
    Amount,
    /// Whatever it is: not looked into.
    Any,
    /// Any keys, values of this shape.
    Map(&'static Shape),
    /// Items of this shape.
    List(&'static Shape),
    /// Fields of their own.
    Object(&'static [Field]),
}

/// `int32` of Go.
pub const INT32: Shape = int(i32::MIN as i64, i32::MAX as i64);
/// `int32` that must not be negative.
pub const COUNT: Shape = int(0, i32::MAX as i64);
/// `int64` of Go.
pub const INT64: Shape = int(i64::MIN, i64::MAX);
/// A list of texts.
pub const TEXTS: Shape = Shape::List(&Shape::Text);

/// A range.
pub const fn int(min: i64, max: i64) -> Shape {
    Shape::Integer { min, max }
}

/// One field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What Plimsoll does with it.
    pub class: Class,
    /// What its value must look like.
    pub shape: Shape,
    /// The value where it is left out, as YAML.
    pub default: Option<&'static str>,
    /// Whether a zero means the same as leaving it out.
    pub zero_is_absent: bool,
    /// What it is for.
    pub meaning: &'static str,
}

/// A field without a default, where a zero means that it is left out.
pub const fn field(name: &'static str, class: Class, shape: Shape, meaning: &'static str) -> Field {
    Field {
        name,
        class,
        shape,
        default: None,
        zero_is_absent: true,
        meaning,
    }
}

/// A field that is the kubelet's alone.
pub const fn kubelets(name: &'static str) -> Field {
    field(name, Class::Kubelet, Shape::Any, "").pointer()
}

impl Field {
    /// The same field with a default.
    pub const fn or(self, default: &'static str) -> Self {
        Self {
            default: Some(default),
            ..self
        }
    }

    /// The same field where a zero is a value: a pointer in the kubelet's type.
    pub const fn pointer(self) -> Self {
        Self {
            zero_is_absent: false,
            ..self
        }
    }
}

/// Checks the tree of a file. Fields that are `null`, unknown, or a zero that means nothing are removed; a value that
/// is wrong becomes `null`, so that what looks at it later can tell it from one that was left out, and says nothing
/// more about it.
pub fn check(root: &mut Node, fields: &'static [Field], problems: &mut Vec<Problem>) {
    match &mut root.value {
        Value::Null => root.value = Value::Map(Vec::new()),
        Value::Map(entries) => check_object(entries, fields, "", problems),
        other => problems.push(Problem::new(
            root.origin,
            "",
            format!(
                "a configuration is a map of fields, and this is {}",
                other.kind()
            ),
        )),
    }
}

fn check_object(
    entries: &mut Vec<Entry>,
    fields: &'static [Field],
    path: &str,
    problems: &mut Vec<Problem>,
) {
    refuse_duplicates(entries, path, problems);
    entries.retain_mut(|entry| {
        let name = if path.is_empty() {
            entry.key.clone()
        } else {
            format!("{path}.{}", entry.key)
        };
        let Some(field) = fields.iter().find(|field| field.name == entry.key) else {
            problems.push(Problem::new(
                entry.origin,
                &name,
                unknown(&entry.key, fields, path.is_empty()),
            ));
            return false;
        };
        if entry.node.value == Value::Null
            || (field.zero_is_absent && is_zero(&entry.node.value, &field.shape))
        {
            return false;
        }
        check_value(&mut entry.node, &field.shape, &name, problems);
        true
    });
}

fn refuse_duplicates(entries: &mut Vec<Entry>, path: &str, problems: &mut Vec<Problem>) {
    let mut index = 1;
    while index < entries.len() {
        let first = entries[..index]
            .iter()
            .find(|earlier| earlier.key == entries[index].key)
            .map(|earlier| earlier.origin);
        match first {
            Some(first) => {
                let again = entries.remove(index);
                let name = if path.is_empty() {
                    again.key
                } else {
                    format!("{path}: {}", again.key)
                };
                let reason = match first {
                    Origin::File { line } => format!("it is already set in line {line}"),
                    Origin::Default | Origin::Flag(_) => "it is already set".to_owned(),
                };
                problems.push(Problem::new(again.origin, &name, reason));
            }
            None => index += 1,
        }
    }
}

fn is_zero(value: &Value, shape: &Shape) -> bool {
    match (value, shape) {
        (Value::Integer(0), Shape::Integer { .. }) => true,
        (Value::Text(text), Shape::Duration) => duration::parse_ns(text) == Ok(0),
        (Value::Text(text), Shape::Text | Shape::OneOf(_) | Shape::Quantity) => text.is_empty(),
        _ => false,
    }
}

fn check_value(node: &mut Node, shape: &Shape, name: &str, problems: &mut Vec<Problem>) {
    if let Err(reason) = check_shape(node, shape, name, problems) {
        problems.push(Problem::new(node.origin, name, reason));
        node.value = Value::Null;
    }
}

/// The value itself; what is inside of it reports on its own.
fn check_shape(
    node: &mut Node,
    shape: &Shape,
    name: &str,
    problems: &mut Vec<Problem>,
) -> Result<(), String> {
    match (shape, &mut node.value) {
        (Shape::Any, _) | (Shape::Bool, Value::Bool(_)) | (Shape::Text, Value::Text(_)) => Ok(()),
        (Shape::Number, Value::Integer(_)) => Ok(()),
        (Shape::Number, Value::Float(value)) if value.is_finite() => Ok(()),
        (Shape::Integer { min, max }, value) if whole(value).is_some() => {
            let number = whole(value).unwrap_or_default();
            if (i128::from(*min)..=i128::from(*max)).contains(&number) {
                *value = Value::Integer(number);
                Ok(())
            } else {
                Err(format!("{number} must be between {min} and {max}"))
            }
        }
        (Shape::OneOf(texts), Value::Text(text)) => {
            if texts.contains(&text.as_str()) {
                Ok(())
            } else {
                Err(format!("{text:?} is not one of {}", texts.join(", ")))
            }
        }
        (Shape::Duration, Value::Text(text)) => match duration::parse_ns(text) {
            Ok(0..) => Ok(()),
            Ok(_) => Err(format!("{text:?} must not be negative")),
            Err(error) => Err(error.to_string()),
        },
        (Shape::Quantity | Shape::Amount, value @ (Value::Integer(_) | Value::Float(_))) => {
            *value = Value::Text(value.to_string());
            check_shape(node, shape, name, problems)
        }
        (Shape::Quantity, Value::Text(text)) => Quantity::parse(text)
            .map(|_| ())
            .map_err(|error| error.to_string()),
        (Shape::Amount, Value::Text(_)) => Ok(()),
        (Shape::Map(inner), Value::Map(entries)) => {
            refuse_duplicates(entries, name, problems);
            for entry in entries {
                let name = format!("{name}: {}", entry.key);
                check_value(&mut entry.node, inner, &name, problems);
            }
            Ok(())
        }
        (Shape::List(inner), Value::List(items)) => {
            for (index, item) in items.iter_mut().enumerate() {
                check_value(item, inner, &format!("{name}[{index}]"), problems);
            }
            Ok(())
        }
        (Shape::Object(fields), Value::Map(entries)) => {
            check_object(entries, fields, name, problems);
            Ok(())
        }
        (
            Shape::Text | Shape::OneOf(_),
            value @ (Value::Bool(_) | Value::Integer(_) | Value::Float(_)),
        ) => Err(format!(
            "{value} is {}, and a text is wanted: quote it",
            value.kind()
        )),
        (Shape::Duration, value @ (Value::Integer(_) | Value::Float(_))) => Err(format!(
            "{value} is a number without a unit: write a duration such as \"30s\" or \"1m30s\""
        )),
        (_, Value::Null) => Err(format!("it has no value: {}", wanted(shape))),
        (_, value) => Err(format!("{value} is {}: {}", article(value), wanted(shape))),
    }
}

fn article(value: &Value) -> String {
    match value {
        Value::List(_) | Value::Map(_) => "not what is wanted here".to_owned(),
        _ => value.kind().to_owned(),
    }
}

fn whole(value: &Value) -> Option<i128> {
    // A float up to 2^53 is exact.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Integer(number) => Some(*number),
        Value::Float(number) if number.fract() == 0.0 && number.abs() <= EXACT => {
            Some(*number as i128)
        }
        _ => None,
    }
}

/// What would be right, for the end of a message.
fn wanted(shape: &Shape) -> String {
    match shape {
        Shape::Any => "write a value".into(),
        Shape::Bool => "write true or false".into(),
        Shape::Integer { min, max } if *min == 0 && *max > 1 << 30 => {
            "write a whole number of at least 0".into()
        }
        Shape::Integer { min, max } if *min > -(1 << 30) => {
            format!("write a whole number between {min} and {max}")
        }
        Shape::Integer { .. } => "write a whole number".into(),
        Shape::Number => "write a number".into(),
        Shape::Text => "write a text".into(),
        Shape::OneOf(texts) => format!("write one of {}", texts.join(", ")),
        Shape::Duration => "write a duration such as \"30s\" or \"1m30s\"".into(),
        Shape::Quantity => "write a quantity such as \"500Mi\"".into(),
        Shape::Amount => {
            "write a quantity such as \"500Mi\", or a percentage such as \"5%\"".into()
        }
        Shape::Map(_) => "write a map of names and values".into(),
        Shape::List(_) => "write a list".into(),
        Shape::Object(fields) => {
            let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
            format!("write a map with {}", names.join(", "))
        }
    }
}

/// Why a name is refused, with the one that was probably meant.
fn unknown(name: &str, fields: &'static [Field], at_top: bool) -> String {
    if let Some(near) = nearest(name, fields.iter().map(|field| field.name)) {
        return format!("there is no such field: did you mean {near}?");
    }
    let inside = fields.iter().find(|field| {
        matches!(field.shape, Shape::Object(inner) if inner.iter().any(|field| field.name == name))
    });
    match inside {
        Some(outer) => format!("there is no such field here: it belongs below {}", outer.name),
        None if at_top => {
            "there is no such field: it is in neither KubeletConfiguration v1beta1 of 1.36 nor PlimsollConfiguration".into()
        }
        None => {
            let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
            format!("there is no such field: use {}", names.join(", "))
        }
    }
}

/// Adds what is left out, at every level.
pub fn add_defaults(root: &mut Node, fields: &'static [Field]) {
    let Value::Map(entries) = &mut root.value else {
        return;
    };
    for field in fields {
        let position = entries.iter().position(|entry| entry.key == field.name);
        if let (Some(position), Shape::Object(inner)) = (position, field.shape) {
            add_defaults(&mut entries[position].node, inner);
        }
        if position.is_none()
            && let Some(value) = default_value(field)
        {
            entries.push(Entry {
                key: field.name.to_owned(),
                origin: Origin::Default,
                node: Node::default_of(value),
            });
        }
    }
}

/// A field's default: its own, or that of the fields inside of it.
pub fn default_value(field: &Field) -> Option<Value> {
    if let Some(text) = field.default {
        let mut node = super::document::parse(&format!("default: {text}")).ok()?;
        node.set_origin(Origin::Default);
        return node.get("default").map(|node| node.value.clone());
    }
    if let Shape::Object(inner) = field.shape {
        let mut node = Node::default_of(Value::Map(Vec::new()));
        add_defaults(&mut node, inner);
        return (node.value != Value::Map(Vec::new())).then_some(node.value);
    }
    None
}
