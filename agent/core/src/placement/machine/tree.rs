//! A file's values before they are interpreted, so that an error can name the path of the field.
//!
//! A derived `Deserialize` says `invalid type: string "a", expected u32` and no more; a person who wrote forty rows of
//! cores needs `cores[17].socket`. The tree is small (a machine has at most 1,024 CPUs) and read once.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::MachineError;
use crate::placement::cpu_set::{CPUS_MAX, CpuSet};

/// Any value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Integer(u64),
    Text(String),
    List(Vec<Value>),
    Map(Vec<(String, Value)>),
    /// A boolean, a negative number or one with a fraction, as it was written: nothing here takes one.
    Other(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("nothing"),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::List(_) => f.write_str("a list"),
            Self::Map(_) => f.write_str("an object"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// A value and its path.
#[derive(Debug, Clone)]
pub(super) struct Field<'a> {
    pub(super) path: String,
    value: &'a Value,
}

/// An object of which every field is known.
#[derive(Debug)]
pub(super) struct Object<'a> {
    path: String,
    fields: &'a [(String, Value)],
}

impl<'a> Field<'a> {
    pub(super) fn root(value: &'a Value) -> Self {
        Self {
            path: String::new(),
            value,
        }
    }

    pub(super) fn expected(&self, expected: &'static str) -> MachineError {
        let field = if self.path.is_empty() {
            "the file".to_owned()
        } else {
            self.path.clone()
        };
        MachineError::Expected {
            field,
            expected,
            found: self.value.to_string(),
        }
    }

    /// Whether this is an object with such a field.
    pub(super) fn has(&self, name: &str) -> bool {
        matches!(self.value, Value::Map(fields) if fields.iter().any(|(key, _)| key == name))
    }

    pub(super) fn object(&self, known: &[&str]) -> Result<Object<'a>, MachineError> {
        let Value::Map(fields) = self.value else {
            return Err(self.expected("an object"));
        };
        for (at, (name, _)) in fields.iter().enumerate() {
            let field = join(&self.path, name);
            if !known.contains(&name.as_str()) {
                let known = known.join(", ");
                return Err(MachineError::Unknown { field, known });
            }
            if fields[..at].iter().any(|(earlier, _)| earlier == name) {
                return Err(MachineError::Repeated { field });
            }
        }
        Ok(Object {
            path: self.path.clone(),
            fields,
        })
    }

    pub(super) fn list(&self) -> Result<Vec<Field<'a>>, MachineError> {
        let Value::List(values) = self.value else {
            return Err(self.expected("a list"));
        };
        let field = |(at, value)| Field {
            path: format!("{}[{at}]", self.path),
            value,
        };
        Ok(values.iter().enumerate().map(field).collect())
    }

    pub(super) fn u64(&self) -> Result<u64, MachineError> {
        match self.value {
            Value::Integer(number) => Ok(*number),
            _ => Err(self.expected("a whole number")),
        }
    }

    pub(super) fn u32(&self) -> Result<u32, MachineError> {
        let expected = "a whole number below 4294967296";
        u32::try_from(self.u64()?).map_err(|_| self.expected(expected))
    }

    pub(super) fn text(&self) -> Result<&'a str, MachineError> {
        match self.value {
            Value::Text(text) => Ok(text),
            _ => Err(self.expected("a text")),
        }
    }

    /// A list of CPUs in the kernel's form. One CPU may be written as a number.
    pub(super) fn cpus(&self) -> Result<CpuSet, MachineError> {
        let list = match self.value {
            Value::Integer(cpu) if *cpu < u64::from(CPUS_MAX) => cpu.to_string(),
            Value::Text(list) => list.clone(),
            _ => return Err(self.expected("a list of CPUs such as \"0-3,8\"")),
        };
        CpuSet::parse(&list).map_err(|error| MachineError::Cpus {
            field: self.path.clone(),
            error,
        })
    }
}

impl<'a> Object<'a> {
    /// A field that may be missing; `null` is missing.
    pub(super) fn get(&self, name: &str) -> Option<Field<'a>> {
        let (_, value) = self.fields.iter().find(|(key, _)| key == name)?;
        let path = join(&self.path, name);
        (*value != Value::Null).then_some(Field { path, value })
    }

    pub(super) fn require(&self, name: &str) -> Result<Field<'a>, MachineError> {
        let missing = || MachineError::Missing {
            field: join(&self.path, name),
        };
        self.get(name).ok_or_else(missing)
    }

    pub(super) fn get_u32(&self, name: &str) -> Result<Option<u32>, MachineError> {
        self.get(name).map(|field| field.u32()).transpose()
    }

    pub(super) fn require_u32(&self, name: &str) -> Result<u32, MachineError> {
        self.require(name)?.u32()
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyVisitor)
    }
}

struct AnyVisitor;

impl<'de> Visitor<'de> for AnyVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Other(value.to_string()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(u64::try_from(value).map_or_else(|_| Value::Other(value.to_string()), Value::Integer))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Other(value.to_string()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(Value::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Value::Map(fields))
    }
}
