//! A call of the API and its answer, as decisions see them: no connection, no credentials.

use serde::Deserialize;

/// Bytes of a message of the API server that are kept.
const MESSAGE_BYTES_MAX: usize = 512;
/// Causes of a refusal that are looked at.
const CAUSES_MAX: usize = 16;

/// What is done to the object; also a metric's label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Read.
    Get,
    /// Create.
    Post,
    /// Replace.
    Put,
    /// Change a part.
    Patch,
    /// Delete.
    Delete,
}

impl Verb {
    /// As HTTP has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// How the body of a call is read by the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// An object.
    Json,
    /// A patch that merges lists by their keys.
    StrategicMerge,
    /// A patch that replaces lists.
    Merge,
    /// A patch of steps (RFC 6902), all of which are done or none.
    JsonPatch,
    /// Server-side apply: all that this manager sets, and nothing else of its own; it creates what is not there.
    Apply,
    /// The same, refused (409) where another manager has set one of these fields to something else.
    ApplyUnlessForeign,
}

impl Content {
    /// The header `Content-Type`.
    #[must_use]
    pub const fn mime(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::StrategicMerge => "application/strategic-merge-patch+json",
            Self::Merge => "application/merge-patch+json",
            Self::JsonPatch => "application/json-patch+json",
            // JSON is YAML.
            Self::Apply | Self::ApplyUnlessForeign => "application/apply-patch+yaml",
        }
    }
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// What is done.
    pub verb: Verb,
    /// Resource and subresource, as RBAC names them; also a metric's label.
    pub resource: &'static str,
    /// Path and query below the API server's address.
    pub path: String,
    /// How the body is read.
    pub content: Content,
    /// The body; empty for none.
    pub body: Vec<u8>,
}

impl Call {
    /// Reads an object.
    #[must_use]
    pub const fn get(resource: &'static str, path: String) -> Self {
        Self {
            verb: Verb::Get,
            resource,
            path,
            content: Content::Json,
            body: Vec::new(),
        }
    }

    /// Writes. `dry_run`: the API server checks everything and stores nothing.
    #[must_use]
    pub fn write(
        verb: Verb,
        resource: &'static str,
        path: &str,
        content: Content,
        body: &serde_json::Value,
        dry_run: bool,
    ) -> Self {
        let mut path = path.to_owned();
        // DELETE knows no field manager.
        if verb != Verb::Delete {
            path.push_str("?fieldManager=plimsoll");
        }
        if content == Content::Apply {
            path.push_str("&force=true");
        }
        if dry_run {
            path.push(if path.contains('?') { '&' } else { '?' });
            path.push_str("dryRun=All");
        }
        Self {
            verb,
            resource,
            path,
            content,
            body: body.to_string().into_bytes(),
        }
    }
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// 2xx, with the body.
    Done(Vec<u8>),
    /// Another code.
    Refused(Refusal),
    /// No answer, or a part of one: no connection, a time-out, a body beyond its bound. Why, in words.
    Lost(String),
}

impl Answer {
    /// How long the server asks to wait before the next try, milliseconds.
    #[must_use]
    pub const fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::Refused(refusal) => refusal.retry_after_ms,
            Self::Done(_) | Self::Lost(_) => None,
        }
    }

    /// Why it is no success, in words.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Done(_) => String::new(),
            // So the API server answers where it does not serve a group.
            Self::Refused(refusal) if refusal.is_foreign && refusal.code == 404 => {
                "404, and no Status: the API server does not serve it (is its definition installed? deploy/components/arbitrator has those of plimsoll.dev), or something on the way to it has answered".to_owned()
            }
            Self::Refused(refusal) if refusal.is_foreign => format!(
                "{}, and no Status: something between here and the API server has answered",
                refusal.code
            ),
            Self::Refused(refusal) => {
                let what_to_do = if refusal.lacks_right() {
                    "; grant that to the account (docs/reference/cluster.md has all rights that it needs)"
                } else {
                    ""
                };
                format!(
                    "{} {} {}{what_to_do}",
                    refusal.code, refusal.reason, refusal.message
                )
            }
            Self::Lost(why) => why.clone(),
        }
    }
}

/// An answer that is no success: a `metav1.Status`, or what something between here and the API server says in its
/// place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Refusal {
    /// HTTP status code.
    pub code: u16,
    /// The body is no Status: a proxy, a load balancer or a login page answers, not the API server, whose own answer is
    /// so only for groups that it does not serve.
    pub is_foreign: bool,
    /// `reason`, one word.
    pub reason: String,
    /// `message`, cut off.
    pub message: String,
    /// `details.causes`: reason and field of each.
    pub causes: Vec<(String, String)>,
    /// The header `Retry-After`, milliseconds.
    pub retry_after_ms: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    kind: String,
    reason: String,
    message: String,
    details: Option<Details>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Details {
    causes: Option<Vec<Cause>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Cause {
    reason: String,
    field: String,
}

impl Refusal {
    /// From code, header and body; a body that is no Status leaves the rest empty.
    #[must_use]
    pub fn read(code: u16, retry_after_s: Option<u64>, body: &[u8]) -> Self {
        let status: Status = serde_json::from_slice(body).unwrap_or_default();
        let causes = status.details.and_then(|details| details.causes);
        Self {
            code,
            is_foreign: status.kind != "Status",
            reason: cut(&status.reason, 64).to_owned(),
            message: cut(&status.message, MESSAGE_BYTES_MAX).to_owned(),
            causes: causes
                .unwrap_or_default()
                .into_iter()
                .take(CAUSES_MAX)
                .map(|cause| (cause.reason, cause.field))
                .collect(),
            retry_after_ms: retry_after_s.map(|s| s.min(3_600) * 1000),
        }
    }

    /// Whether a cause has this reason.
    #[must_use]
    pub fn has_cause(&self, reason: &str) -> bool {
        self.causes.iter().any(|(known, _)| known == reason)
    }

    /// Whether a cause names this field.
    #[must_use]
    pub fn is_of_field(&self, field: &str) -> bool {
        self.causes.iter().any(|(_, known)| known == field)
    }

    /// Whether the same call can succeed later without a change of it: the server's trouble, flow control, a token that
    /// has just expired, or something on the way that has answered.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        self.is_foreign || matches!(self.code, 401 | 408 | 425 | 429) || self.code >= 500
    }

    /// Whether the account lacks the right to the call, whatever the object is: by the words of the API server where no
    /// authorizer allows it (`forbiddenMessage` in `k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go`
    /// of 1.36). An API server that has just started says the same until it has read the roles. Admission, which judges
    /// the object, has words of its own.
    #[must_use]
    pub fn lacks_right(&self) -> bool {
        let words = ["User \"", "\" cannot ", " resource \""];
        let mut rest = Some(self.message.as_str());
        for word in words {
            rest = rest.and_then(|rest| Some(rest.split_once(word)?.1));
        }
        self.code == 403 && !self.is_foreign && rest.is_some()
    }

    /// Whether the API server says that it has no such object.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code == 404 && self.reason == "NotFound"
    }
}

/// The beginning of a text, at most `bytes` long, not in the middle of a character.
#[must_use]
pub fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_read_whatever_the_body_is() {
        let body = br#"{"kind":"Status","reason":"TooManyRequests","message":"Cannot evict pod","details":{"causes":[{"reason":"DisruptionBudget","message":"x"}]},"code":429}"#;
        let refusal = Refusal::read(429, None, body);
        assert!(refusal.has_cause("DisruptionBudget") && refusal.is_passing());
        for garbage in [&b"<html>"[..], b"", b"null", b"{\"details\":null}", b"[1]"] {
            let refusal = Refusal::read(500, Some(u64::MAX), garbage);
            assert_eq!((refusal.code, refusal.causes.len()), (500, 0));
            // A load balancer's "default backend - 404" says nothing about the object.
            let refusal = Refusal::read(404, None, garbage);
            assert!(refusal.is_passing() && !refusal.is_not_found());
            let words = Answer::Refused(refusal).words();
            assert!(words.contains("is its definition installed?"), "{words}");
            let refusal = Refusal::read(500, Some(u64::MAX), garbage);
            assert_eq!(refusal.retry_after_ms, Some(3_600_000));
        }
        let gone =
            br#"{"kind":"Status","reason":"NotFound","message":"pods \"a\" not found","code":404}"#;
        let refusal = Refusal::read(404, None, gone);
        assert!(refusal.is_not_found() && !refusal.is_passing());
    }

    #[test]
    fn who_lacks_a_right_is_told_from_who_is_refused_for_the_object() {
        let refused = |code: u16, message: &str| {
            let body = serde_json::json!({"kind": "Status", "reason": "Forbidden", "message": message, "code": code});
            Refusal::read(code, None, body.to_string().as_bytes())
        };
        let account = "system:serviceaccount:plimsoll:plimsoll-arbitrator";
        let cannot = format!(
            r#"pods "{}" is forbidden: User "{account}" cannot create resource "pods/eviction" in API group "" in the namespace "shop""#,
            "x".repeat(253)
        );
        assert!(refused(403, &cannot).lacks_right());
        let words = Answer::Refused(refused(403, &cannot)).words();
        assert!(words.ends_with("all rights that it needs)"), "{words}");
        for (code, message) in [
            (
                403,
                r#"pods "a" is forbidden: admission webhook "x" denied the request: User "a" is not on duty"#,
            ),
            (
                403,
                r#"pods "a" is forbidden: ValidatingAdmissionPolicy 'x' with binding 'x' denied request: not now"#,
            ),
            (
                403,
                r#"pods "a" is forbidden: node "n" can only evict pods with spec.nodeName set to itself"#,
            ),
            (422, &*cannot),
        ] {
            assert!(!refused(code, message).lacks_right(), "{message}");
        }
        let mut page = refused(403, &cannot);
        page.is_foreign = true;
        assert!(!page.lacks_right());
    }

    #[test]
    fn queries() {
        let body = serde_json::json!({});
        let path = |verb, dry| Call::write(verb, "pods", "/a", Content::Json, &body, dry).path;
        assert_eq!(path(Verb::Patch, false), "/a?fieldManager=plimsoll");
        assert_eq!(
            path(Verb::Patch, true),
            "/a?fieldManager=plimsoll&dryRun=All"
        );
        assert_eq!(path(Verb::Delete, false), "/a");
        assert_eq!(path(Verb::Delete, true), "/a?dryRun=All");
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(cut("naïve", 3), "na");
        assert_eq!(cut("naïve", 4), "naï");
        assert_eq!(cut("a", 9), "a");
    }
}
