//! The webhook's certificate: made, judged and made ready to be served. Nothing else here knows a key.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier as _;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::arbitrate::webhook::{Lasts, Pair, RENEWED_BEFORE_MS};

const DAY_MS: u64 = 24 * 3_600_000;
/// A certificate is good for so long after it was made.
const GOOD_FOR_MS: u64 = 90 * DAY_MS;
/// And for so long before: clocks differ.
const GOOD_BEFORE_MS: u64 = DAY_MS;
/// No certificate can say a later time than the year 9999; some years of it are left for sums.
const UNIX_MS_MAX: u64 = 250_000_000_000_000;

/// What a listener serves.
pub type Served = Arc<ServerConfig>;

fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

/// What both certificates have. Times are those of the clock on the wall, which is the one that certificates are
/// compared with.
fn params(
    names: Vec<String>,
    title: &str,
    unix_ms: u64,
) -> Result<CertificateParams, rcgen::Error> {
    let at = |ms: u64| date_time_ymd(1970, 1, 1) + Duration::from_millis(ms);
    let unix_ms = unix_ms.min(UNIX_MS_MAX);
    let mut params = CertificateParams::new(names)?;
    params.not_before = at(unix_ms.saturating_sub(GOOD_BEFORE_MS));
    params.not_after = at(unix_ms + GOOD_FOR_MS);
    params.distinguished_name.push(DnType::CommonName, title);
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// A certificate for this name, signed by an authority of its own, whose key is gone when this returns: it signs
/// nothing else.
///
/// # Errors
/// The name is none, or no key could be made.
pub fn make(name: &str, unix_ms: u64) -> Result<Pair, String> {
    signed(name, unix_ms).map_err(|error| error.to_string())
}

fn signed(name: &str, unix_ms: u64) -> Result<Pair, rcgen::Error> {
    let mut authority = params(Vec::new(), "plimsoll-arbitrator webhook", unix_ms)?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate()?;
    let authorities = authority.self_signed(&key)?.pem();
    let issuer = Issuer::new(authority, key);
    let mut served = params(vec![name.to_owned()], "plimsoll-arbitrator", unix_ms)?;
    served.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    served.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    Ok(Pair {
        authorities,
        certificate: served.signed_by(&key, &issuer)?.pem(),
        key: key.serialize_pem(),
    })
}

/// For how long a client that trusts the pair's authorities takes its certificate for this name: judged as such a
/// client does.
#[must_use]
pub fn lasts(pair: &Pair, name: &str, unix_ms: u64) -> Lasts {
    if served(pair, None).is_err() || !is_good(pair, name, unix_ms) {
        return Lasts::Not;
    }
    if is_good(pair, name, unix_ms.saturating_add(RENEWED_BEFORE_MS)) {
        Lasts::Long
    } else {
        Lasts::Soon
    }
}

fn is_good(pair: &Pair, name: &str, unix_ms: u64) -> bool {
    let mut roots = RootCertStore::empty();
    let authorities = CertificateDer::pem_slice_iter(pair.authorities.as_bytes());
    roots.add_parsable_certificates(authorities.flatten());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
    let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes());
    let (Ok(verifier), Ok(certificate), Ok(name)) =
        (verifier, certificate, ServerName::try_from(name))
    else {
        return false;
    };
    let at = UnixTime::since_unix_epoch(Duration::from_millis(unix_ms));
    verifier
        .verify_server_cert(&certificate, &[], &name, &[], at)
        .is_ok()
}

/// What a listener serves with this pair: TLS 1.3, HTTP/1.1. `clients`: authorities, as PEM; who has no certificate of
/// one of them is not heard. Nothing: everybody is.
///
/// # Errors
/// What is wrong with the pair, as when its key is that of another certificate, or with the authorities.
pub fn served(pair: &Pair, clients: Option<&str>) -> Result<Served, String> {
    let certificates = CertificateDer::pem_slice_iter(pair.certificate.as_bytes());
    let certificates: Result<Vec<_>, _> = certificates.collect();
    let certificates = certificates.map_err(|error| format!("its certificate: {error}"))?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes());
    let key = key.map_err(|error| format!("its key: {error}"))?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?;
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(authorities) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(
                Arc::new(self::authorities(authorities)?),
                provider(),
            );
            let verifier = verifier.build();
            config.with_client_cert_verifier(verifier.map_err(|error| error.to_string())?)
        }
    };
    let config = config.with_single_cert(certificates, key);
    let mut config = config.map_err(|error| error.to_string())?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Authorities of clients, from PEM. All of them must be readable, and there must be one: a file that is empty would
/// let nobody in, or everybody.
///
/// # Errors
/// What is wrong with them.
pub fn authorities(pem: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let authority = authority.map_err(|error| error.to_string())?;
        let added = roots.add(authority);
        added.map_err(|error| error.to_string())?;
    }
    if roots.is_empty() {
        return Err("there is no certificate in it".to_owned());
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "plimsoll-arbitrator.plimsoll.svc";
    const NOW_MS: u64 = 1_795_341_600_000;

    #[test]
    fn a_certificate_is_good_for_its_name_and_its_time() {
        let pair = make(NAME, NOW_MS).unwrap();
        let cases = [
            (NAME, NOW_MS, Lasts::Long),
            (NAME, NOW_MS - DAY_MS / 2, Lasts::Long),
            (NAME, NOW_MS + 59 * DAY_MS, Lasts::Long),
            (NAME, NOW_MS + 61 * DAY_MS, Lasts::Soon),
            // A clock that jumps.
            (NAME, NOW_MS + 91 * DAY_MS, Lasts::Not),
            (NAME, NOW_MS - 2 * DAY_MS, Lasts::Not),
            (NAME, 0, Lasts::Not),
            (NAME, u64::MAX, Lasts::Not),
            ("plimsoll-arbitrator.other.svc", NOW_MS, Lasts::Not),
            ("", NOW_MS, Lasts::Not),
        ];
        for (name, unix_ms, expected) in cases {
            assert_eq!(lasts(&pair, name, unix_ms), expected, "{name} {unix_ms}");
        }
        for unix_ms in [0, 1, u64::MAX] {
            // A clock that is wrong makes no panic.
            assert!(make(NAME, unix_ms).is_ok(), "{unix_ms}");
        }
        let of_address = make("127.0.0.1", NOW_MS).unwrap();
        assert_eq!(lasts(&of_address, "127.0.0.1", NOW_MS), Lasts::Long);
        assert!(make("näme", NOW_MS).is_err());
    }

    #[test]
    fn authorities_of_clients_are_there_and_readable_or_nothing_is_served() {
        let pair = make(NAME, NOW_MS).unwrap();
        assert!(served(&pair, Some(&pair.authorities)).is_ok());
        let half = pair.authorities.replace("-----END", "");
        for wrong in ["", "garbage", pair.key.as_str(), half.as_str()] {
            assert!(served(&pair, Some(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn parts_of_two_pairs_are_none() {
        let (one, other) = (make(NAME, NOW_MS).unwrap(), make(NAME, NOW_MS).unwrap());
        let both = one.clone().after(&other);
        assert_eq!(lasts(&both, NAME, NOW_MS), Lasts::Long);
        let of_before = Pair {
            authorities: other.clone().after(&one).authorities,
            ..one.clone()
        };
        assert_eq!(lasts(&of_before, NAME, NOW_MS), Lasts::Long);
        for wrong in [
            Pair::default(),
            Pair {
                key: other.key.clone(),
                ..one.clone()
            },
            Pair {
                authorities: other.authorities.clone(),
                ..one.clone()
            },
            Pair {
                certificate: "garbage".into(),
                ..one.clone()
            },
            Pair {
                key: String::new(),
                ..one.clone()
            },
        ] {
            assert_eq!(lasts(&wrong, NAME, NOW_MS), Lasts::Not);
        }
    }
}
