//! The webhook's two objects: the Secret with its certificate, and the configuration by which the API server trusts it.
//! Pure: what was read comes in, the next step goes out.
//!
//! Problem: the API server calls a webhook only over TLS, and trusts the authority that the configuration names. A
//! third party that issues certificates would be one more thing to install. Approach: who has the Lease makes both,
//! writes the certificate into the Secret and the authority into the configuration. The Secret names the new authority
//! and the one before it, and a process serves a certificate only when the configuration names its authority: while the
//! two processes go over to a new one, the API server trusts both.

use k8s_openapi::ByteString;
use serde::Deserialize;
use serde_json::json;

use crate::call::{Call, Content, Verb};
use crate::report::body::escaped;

/// The Secret. `deploy/` makes it empty, so that no right to create Secrets is needed: with one any token of the
/// namespace could be had.
const SECRET: &str = "plimsoll-arbitrator-webhook";
/// The ValidatingWebhookConfiguration.
const CONFIGURATION: &str = "plimsoll-arbitrator";
/// Its webhook.
const WEBHOOK: &str = "consumers.plimsoll.dev";
/// Ends a certificate in PEM.
const END: &str = "-----END CERTIFICATE-----\n";
/// A certificate is made anew when it has so long to go, milliseconds: 30 days.
pub const RENEWED_BEFORE_MS: u64 = 30 * 24 * 3_600_000;

/// What is served, as PEM.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Pair {
    /// The authority that has signed the certificate, then the one before it.
    pub authorities: String,
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

impl Pair {
    /// The authority of the certificate.
    fn authority(&self) -> &str {
        let end = self.authorities.find(END).map(|at| at + END.len());
        end.and_then(|end| self.authorities.get(..end))
            .unwrap_or_default()
    }

    /// This one after another: the API server is to trust both for now.
    #[must_use]
    pub fn after(mut self, other: &Self) -> Self {
        self.authorities.push_str(other.authority());
        self
    }
}

/// The Secret as it was read.
pub struct SeenSecret {
    version: String,
    /// What is in it; nothing there is empty.
    pub pair: Pair,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    resource_version: String,
}

impl SeenSecret {
    /// Reads it.
    #[must_use]
    pub fn call(namespace: &str) -> Call {
        Call::get("secrets", secret_path(namespace))
    }

    /// What the answer says.
    ///
    /// # Errors
    /// What serde says.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Secret {
            metadata: Meta,
            data: Option<Data>,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Data {
            #[serde(rename = "ca.crt")]
            authorities: ByteString,
            #[serde(rename = "tls.crt")]
            certificate: ByteString,
            #[serde(rename = "tls.key")]
            key: ByteString,
        }
        let secret: Secret = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let data = secret.data.unwrap_or_default();
        let text = |bytes: ByteString| String::from_utf8(bytes.0).unwrap_or_default();
        Ok(Self {
            version: secret.metadata.resource_version,
            pair: Pair {
                authorities: text(data.authorities),
                certificate: text(data.certificate),
                key: text(data.key),
            },
        })
    }

    /// Writes another pair in its place, if it is still as it was read.
    #[must_use]
    pub fn replace(&self, namespace: &str, pair: &Pair) -> Call {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let body = json!({
            "metadata": {"resourceVersion": self.version},
            "data": {"ca.crt": bytes(&pair.authorities), "tls.crt": bytes(&pair.certificate), "tls.key": bytes(&pair.key)},
        });
        let path = secret_path(namespace);
        Call::write(Verb::Patch, "secrets", &path, Content::Merge, &body, false)
    }
}

fn secret_path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{}/secrets/{SECRET}", escaped(namespace))
}

/// The configuration as it was read.
pub struct SeenConfiguration {
    version: String,
    /// Authorities that the API server trusts, as PEM.
    pub bundle: String,
}

impl SeenConfiguration {
    const RESOURCE: &str = "validatingwebhookconfigurations";

    fn path() -> String {
        format!(
            "/apis/admissionregistration.k8s.io/v1/{}/{CONFIGURATION}",
            Self::RESOURCE
        )
    }

    /// Reads it.
    #[must_use]
    pub fn call() -> Call {
        Call::get(Self::RESOURCE, Self::path())
    }

    /// What the answer says.
    ///
    /// # Errors
    /// What serde says, or that the webhook is not in it.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Configuration {
            metadata: Meta,
            webhooks: Option<Vec<Webhook>>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Webhook {
            name: String,
            client_config: Client,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Client {
            ca_bundle: ByteString,
        }
        let read: Configuration =
            serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let webhooks = read.webhooks.unwrap_or_default();
        let ours = webhooks.into_iter().find(|it| it.name == WEBHOOK);
        let ours = ours.ok_or_else(|| format!("it has no webhook {WEBHOOK}"))?;
        Ok(Self {
            version: read.metadata.resource_version,
            bundle: String::from_utf8(ours.client_config.ca_bundle.0).unwrap_or_default(),
        })
    }

    /// Has the API server trust these, if it is still as it was read.
    #[must_use]
    pub fn trust(&self, authorities: &str) -> Call {
        let bundle = ByteString(authorities.as_bytes().to_vec());
        let body = json!({
            "metadata": {"resourceVersion": self.version},
            "webhooks": [{"name": WEBHOOK, "clientConfig": {"caBundle": bundle}}],
        });
        let path = Self::path();
        Call::write(
            Verb::Patch,
            Self::RESOURCE,
            &path,
            Content::StrategicMerge,
            &body,
            false,
        )
    }
}

/// For how long the Secret's certificate is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lasts {
    /// It is not: there is none, its time is over or has not begun, or it is for another name.
    Not,
    /// It ends soon.
    Soon,
    /// Longer than [`RENEWED_BEFORE_MS`].
    Long,
}

/// What is done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A certificate is made, and written into the Secret.
    Make,
    /// The Secret's authorities are written into the configuration.
    Trust,
    /// The Secret's certificate is served.
    Serve,
    /// Another process has to do something first.
    Wait,
}

/// The next step. `leads`: this process has the Lease, and writes.
#[must_use]
pub fn next(pair: &Pair, bundle: &str, lasts: Lasts, leads: bool) -> Step {
    let authority = pair.authority();
    match lasts {
        Lasts::Not | Lasts::Soon if leads => Step::Make,
        Lasts::Not => Step::Wait,
        _ if leads && bundle != pair.authorities => Step::Trust,
        _ if !authority.is_empty() && bundle.contains(authority) => Step::Serve,
        _ => Step::Wait,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn pair(number: u32) -> Pair {
        Pair {
            authorities: format!("-----BEGIN CERTIFICATE-----\n{number}\n{END}"),
            certificate: format!("certificate {number}"),
            key: format!("key {number}"),
        }
    }

    /// The API server's object after a patch.
    fn patched(call: &Call) -> Vec<u8> {
        call.body.clone()
    }

    #[test]
    fn the_leader_makes_then_has_it_trusted_then_serves_and_the_other_one_only_serves() {
        let (empty, first) = (Pair::default(), pair(1));
        assert_eq!(next(&empty, "", Lasts::Not, true), Step::Make);
        assert_eq!(next(&empty, "", Lasts::Not, false), Step::Wait);
        assert_eq!(next(&first, "", Lasts::Long, true), Step::Trust);
        assert_eq!(next(&first, "", Lasts::Long, false), Step::Wait);
        for leads in [true, false] {
            let step = next(&first, &first.authorities, Lasts::Long, leads);
            assert_eq!(step, Step::Serve);
        }
        // It ends soon: a second one, with both authorities trusted before it is served.
        let second = pair(2).after(&first);
        assert_eq!(
            next(&first, &first.authorities, Lasts::Soon, true),
            Step::Make
        );
        assert_eq!(
            next(&first, &first.authorities, Lasts::Soon, false),
            Step::Serve
        );
        assert_eq!(
            next(&second, &first.authorities, Lasts::Long, true),
            Step::Trust
        );
        assert_eq!(
            next(&second, &first.authorities, Lasts::Long, false),
            Step::Wait
        );
        for leads in [true, false] {
            let step = next(&second, &second.authorities, Lasts::Long, leads);
            assert_eq!(step, Step::Serve);
        }
        // A third one leaves the first authority out.
        let third = pair(3).after(&second);
        assert!(third.authorities.contains("\n2\n") && !third.authorities.contains("\n1\n"));
        assert_eq!(pair(1).after(&empty).authorities, first.authorities);
    }

    #[test]
    fn objects_are_read_as_they_were_written_and_only_replaced_as_they_were_read() {
        let read = br#"{"metadata":{"resourceVersion":"7"},"type":"Opaque"}"#;
        let secret = SeenSecret::read(read).unwrap();
        assert!(secret.pair == Pair::default());
        let call = secret.replace("p", &pair(1));
        assert_eq!(
            call.path,
            "/api/v1/namespaces/p/secrets/plimsoll-arbitrator-webhook?fieldManager=plimsoll"
        );
        let again = SeenSecret::read(&patched(&call)).unwrap();
        assert!(again.pair == pair(1) && again.version == "7");

        let read = br#"{"metadata":{"resourceVersion":"8"},"webhooks":[{"name":"consumers.plimsoll.dev","clientConfig":{"service":{"name":"x"}}}]}"#;
        let configuration = SeenConfiguration::read(read).unwrap();
        assert_eq!(configuration.bundle, "");
        let call = configuration.trust(&pair(1).authorities);
        let body: Value = serde_json::from_slice(&call.body).unwrap();
        assert_eq!(body["metadata"]["resourceVersion"], "8");
        let again = SeenConfiguration::read(&patched(&call)).unwrap();
        assert_eq!(again.bundle, pair(1).authorities);

        for garbage in [&b""[..], b"<html>", br#"{"data":{"tls.crt":"?"}}"#] {
            assert!(SeenSecret::read(garbage).is_err());
        }
        for garbage in [&b"{}"[..], br#"{"webhooks":[{"name":"other"}]}"#] {
            assert!(SeenConfiguration::read(garbage).is_err());
        }
        let binary = br#"{"data":{"tls.crt":"//8="}}"#;
        assert!(SeenSecret::read(binary).unwrap().pair == Pair::default());
    }
}
