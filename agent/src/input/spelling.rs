//! The name that was meant by one that is unknown: the same hint for a field of a configuration and of a manifest.

/// More characters than this nobody mistypes by hand, and the distance takes quadratic time.
const LONGEST: usize = 100;

/// The name that differs least, if it differs little: by one in four of the characters, or one. Characters that are put
/// in, taken out, replaced, or exchanged with their neighbour count. Case, `-` and `_` count as nothing, as in a flag
/// of the same name.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |name: &str| -> String {
        name.chars()
            .filter(|c| !matches!(c, '-' | '_' | '.'))
            .flat_map(char::to_lowercase)
            .collect()
    };
    let name = plain(name);
    let length = name.chars().count();
    if length > LONGEST {
        return None;
    }
    let (distance, near) = known
        .map(|known| (strsim::osa_distance(&name, &plain(known)), known))
        .min_by_key(|(distance, _)| *distance)?;
    (distance <= (length / 4).max(1)).then_some(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_was_meant() {
        let known = ["cpu", "memory", "resources", "podOOMGroup", "uid"];
        for (name, meant) in [
            ("resorces", Some("resources")),
            ("memroy", Some("memory")),
            ("pod-oom-group", Some("podOOMGroup")),
            ("UID", Some("uid")),
            ("cup", Some("cpu")),
            ("pcus", None),
            ("gpus", None),
            ("disk", None),
            (&"x".repeat(LONGEST + 1), None),
        ] {
            assert_eq!(nearest(name, known.into_iter()), meant, "{name}");
        }
    }
}
