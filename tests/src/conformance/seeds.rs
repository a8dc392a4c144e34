//! `seeds_tables`: the tables of the documentation, each a vector of another file with its kind beside it.

use serde_json::Value;

use super::{Verdict, pods, rank};

pub(super) fn check(vector: &Value) -> Verdict {
    match vector["kind"].as_str() {
        Some("eviction_rank") => rank::check(vector),
        Some("oom_score_adj") => pods::oom_score_adj(vector),
        kind => Verdict::Fail {
            why: format!("kind {kind:?} is unknown"),
        },
    }
}
