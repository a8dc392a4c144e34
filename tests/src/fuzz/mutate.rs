//! Events with odd figures: any number of an event may be any number.

use plimsoll_core::model::event::Event;
use serde_json::Value;

use super::Random;

const ODD: [u64; 10] = [
    0,
    1,
    2,
    4095,
    4096,
    i64::MAX as u64 - 1,
    i64::MAX as u64,
    i64::MAX as u64 + 1,
    u64::MAX - 1,
    u64::MAX,
];

/// The event with some of its numbers replaced; `None` if that is no event any more (a figure that does not fit its
/// field).
pub(super) fn figures(random: &mut Random, event: &Event) -> Option<Event> {
    let mut value = serde_json::to_value(event).ok()?;
    replace(random, &mut value);
    serde_json::from_value(value).ok()
}

fn replace(random: &mut Random, value: &mut Value) {
    match value {
        Value::Number(number) if random.one_in(6) => {
            let known = number.as_u64().unwrap_or(0);
            let odd = match random.below(4) {
                0 => known.wrapping_add(1),
                1 => known.wrapping_sub(1),
                2 => known ^ (1 << random.below(64)),
                _ => *random.pick(&ODD),
            };
            *value = odd.into();
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace(random, item)),
        Value::Object(fields) => fields.values_mut().for_each(|field| replace(random, field)),
        _ => {}
    }
}
