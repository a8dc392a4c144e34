//! What the API server can do: versions differ from 1.20 to 1.37, so it is asked.

use serde::Deserialize;

use crate::api::Api;
use crate::call::{Answer, Call};
use crate::report::Served;

#[derive(Deserialize)]
struct Resources {
    #[serde(default)]
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
    #[serde(default)]
    group: String,
    #[serde(default)]
    version: String,
}

#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Deserialize)]
struct Version {
    version: String,
}

/// Asks.
///
/// # Errors
/// Why there is no answer that can be used.
pub async fn discover(api: &Api) -> Result<Served, String> {
    const CORE: &str = "/api/v1";
    const POLICY: &str = "/apis/policy";
    let core = match ask(api, CORE).await {
        Answer::Done(core) => core,
        other => return Err(format!("{CORE}: {}", other.words())),
    };
    let eviction = eviction_in(&core).ok_or_else(|| format!("{CORE}: no list of resources"))?;
    let has_policy_v1 = match ask(api, POLICY).await {
        Answer::Done(group) => {
            let group: Group = serde_json::from_slice(&group)
                .map_err(|_| format!("{POLICY}: no list of versions"))?;
            group.versions.iter().any(|known| known.version == "v1")
        }
        // Not served at all.
        Answer::Refused(refusal) if refusal.code == 404 => false,
        other => return Err(format!("{POLICY}: {}", other.words())),
    };
    Ok(Served {
        eviction,
        has_policy_v1,
    })
}

async fn ask(api: &Api, path: &str) -> Answer {
    api.call(&Call::get("discovery", path.to_owned())).await
}

/// Group and version in the row `pods/eviction`: 1.20 and 1.21 take no other.
fn eviction_in(resources: &[u8]) -> Option<Option<String>> {
    let resources: Resources = serde_json::from_slice(resources).ok()?;
    let mut rows = resources.resources.into_iter();
    let row = rows.find(|row| row.name == "pods/eviction" && !row.version.is_empty());
    Some(row.map(|row| format!("{}/{}", row.group, row.version)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_says_group_and_version() {
        let rows = br#"{"resources":[{"name":"pods"},{"name":"pods/eviction","group":"policy","version":"v1beta1"}]}"#;
        assert_eq!(eviction_in(rows), Some(Some("policy/v1beta1".to_owned())));
        assert_eq!(eviction_in(b"{\"resources\":[]}"), Some(None));
        assert_eq!(eviction_in(b"<html>"), None);
    }
}
