//! A client that trusts certain authorities, as the API server does.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// An authority, and a certificate of a client that it signed.
pub(crate) struct Client {
    pub(crate) authority: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Client {
    pub(crate) fn new() -> Self {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = authority.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(authority, key);
        let mut client = CertificateParams::new(vec!["kube-apiserver".to_owned()]).unwrap();
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        Self {
            authority: pem,
            certificate: client.signed_by(&key, &issuer).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }
}

/// A connection to this port of loopback, whose certificate is for `127.0.0.1` and of one of these authorities.
pub(crate) async fn connect(port: u16, authorities: &str) -> std::io::Result<TlsStream<TcpStream>> {
    connect_as(port, authorities, None).await
}

/// The same, with a certificate of the client.
pub(crate) async fn connect_as(
    port: u16,
    authorities: &str,
    client: Option<&Client>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        roots.add(authority.unwrap()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match client {
        None => config.with_no_client_auth(),
        Some(client) => {
            let certificate = CertificateDer::from_pem_slice(client.certificate.as_bytes());
            let key = PrivateKeyDer::from_pem_slice(client.key.as_bytes());
            let chain = vec![certificate.unwrap()];
            config.with_client_auth_cert(chain, key.unwrap()).unwrap()
        }
    };
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

/// Sends bytes and reads until the other end has no more, or there are `most`.
pub(crate) async fn exchange(
    stream: &mut TlsStream<TcpStream>,
    request: &[u8],
    most: usize,
) -> String {
    // An end that does not read to the end answers all the same.
    let _written = stream.write_all(request).await;
    let mut answer = vec![0; most];
    let mut length = 0;
    while length < most {
        match stream.read(&mut answer[length..]).await {
            Ok(0) | Err(_) => break,
            Ok(more) => length += more,
        }
        let text = String::from_utf8_lossy(&answer[..length]);
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && let Some(line) = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
            && body.len() >= line.parse().unwrap()
        {
            break;
        }
    }
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

/// A POST of this body.
pub(crate) fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}
