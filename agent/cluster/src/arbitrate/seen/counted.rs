//! A pod with what counts of it alone, for one that cannot be read as a whole: whatever its owner has written, its
//! requests are found.
//!
//! What is no quantity is more than any node has. Nothing is held that does not count, and of the names of resources
//! not many more than a cluster can have: a pod can have some MiB of each.

use std::collections::BTreeMap;
use std::fmt;

use plimsoll_core::arbitration::amounts::RESOURCES_MAX;
use plimsoll_core::kube::pod::{Container, Metadata, Pod, PodSpec, Resources};
use plimsoll_core::kube::quantity::Quantity;
use plimsoll_core::kube::resources::ResourceList;
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Kept of each list, however many names come before them.
const USUAL: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct CountedPod {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    priority: Option<i32>,
    overhead: Option<Amounts>,
    resources: Option<Lists>,
    containers: Option<Vec<Counted>>,
    init_containers: Option<Vec<Counted>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Counted {
    restart_policy: Option<String>,
    resources: Option<Lists>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Lists {
    requests: Option<Amounts>,
    limits: Option<Amounts>,
}

/// Amounts by resource: those of the usual ones, and of so many others that it is seen if they are too many.
#[derive(Default)]
struct Amounts(ResourceList);

impl<'de> Deserialize<'de> for Amounts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;

        impl<'de> Visitor<'de> for Map {
            type Value = Amounts;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("amounts by resource")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Amounts, A::Error> {
                let mut amounts = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    let is_usual = USUAL.contains(&&*name);
                    if amounts.len() <= RESOURCES_MAX || is_usual {
                        let amount = map.next_value::<Amount>()?.0;
                        // Nodes pass over what is 0, so a pod runs with any number of such names: they hide no other.
                        if is_usual || amount.value() != 0 {
                            amounts.insert(name, amount);
                        }
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Amounts(amounts))
            }
        }

        deserializer.deserialize_map(Map)
    }
}

/// What is no quantity is one that no node has.
struct Amount(Quantity);

impl Amount {
    fn of<E: Error>(text: &str) -> Result<Self, E> {
        let quantity = Quantity::parse(text).or_else(|_| Quantity::parse("1Ei"));
        quantity.map(Self).map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Amount;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a quantity")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Amount, E> {
                Amount::of(text)
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Amount, E> {
                Amount::of(&number.to_string())
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Amount, E> {
                Amount::of(&number.to_string())
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Amount, E> {
                Amount::of(&number.to_string())
            }

            fn visit_bool<E: Error>(self, _: bool) -> Result<Amount, E> {
                Amount::of("")
            }

            fn visit_unit<E: Error>(self) -> Result<Amount, E> {
                Amount::of("0")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Amount, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Amount::of("")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Amount, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Amount::of("")
            }
        }

        deserializer.deserialize_any(Any)
    }
}

impl From<Lists> for Resources {
    fn from(lists: Lists) -> Self {
        Self {
            requests: lists.requests.unwrap_or_default().0,
            limits: lists.limits.unwrap_or_default().0,
        }
    }
}

impl From<Counted> for Container {
    fn from(counted: Counted) -> Self {
        Self {
            resources: counted.resources.unwrap_or_default().into(),
            restart_policy: counted.restart_policy,
            ..Self::default()
        }
    }
}

impl From<CountedPod> for Pod {
    fn from(CountedPod { metadata, spec }: CountedPod) -> Self {
        let of = |counted: Option<Vec<Counted>>| {
            let counted = counted.unwrap_or_default().into_iter();
            counted.map(Container::from).collect()
        };
        Self {
            metadata,
            spec: PodSpec {
                containers: of(spec.containers),
                init_containers: of(spec.init_containers),
                resources: spec.resources.map(Resources::from),
                overhead: spec.overhead.unwrap_or_default().0,
                priority: spec.priority,
                ..PodSpec::default()
            },
            ..Self::default()
        }
    }
}
