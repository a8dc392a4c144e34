//! The arbitrator's webhook, called by a real API server. It is called by a URL: without kube-proxy no Service leads
//! anywhere.

use plimsoll_cluster::arbitrate::webhook::SeenSecret;
use plimsoll_cluster::call::{Call, Content, Refusal, Verb};
use plimsoll_cluster::certificate;
use serde_json::{Value, json};

use super::arbitrator::{
    Arbitrator, CONSUMERS, consumer, deploy, installed, kubeconfig, namespace, node,
    until_condition,
};
use super::support::server::{ADMISSION, Server, free_port};
use super::support::tls::{Client, connect};
use super::support::{run, until};
use super::unix_ms;

const SECRETS: &str = "/api/v1/namespaces/plimsoll/secrets";
const SECRET: &str = "/api/v1/namespaces/plimsoll/secrets/plimsoll-arbitrator-webhook";
const CONFIGURATIONS: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const DAY_MS: u64 = 24 * 3_600_000;

/// The Secret and the configuration of `deploy/`, which calls this port.
async fn install(server: &Server, port: u16) {
    for mut object in deploy("webhook.yaml") {
        match object["kind"].as_str().unwrap() {
            "Secret" => {
                server.create(SECRETS, &object).await;
            }
            "ValidatingWebhookConfiguration" => {
                let client = &mut object["webhooks"][0]["clientConfig"];
                let path = client["service"]["path"].as_str().unwrap();
                *client = json!({"url": format!("https://127.0.0.1:{port}{path}")});
                server.create(CONFIGURATIONS, &object).await;
            }
            _ => {}
        }
    }
}

fn new(name: &str, spec: &Value, dry_run: bool) -> Call {
    let body = json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Consumer", "metadata": {"name": name}, "spec": spec});
    Call::write(Verb::Post, "test", CONSUMERS, Content::Json, &body, dry_run)
}

/// What the API server says to a new Consumer that is not stored.
async fn tried(server: &Server, name: &str, spec: &Value) -> Result<Vec<u8>, Refusal> {
    server.answer(&new(name, spec, true)).await
}

/// Makes a Consumer of others that were made just before. The webhook waits for a second until it sees them, and where
/// the machine is slower it refuses it.
async fn until_taken(server: &Server, name: &str, spec: &Value) {
    let call = new(name, spec, false);
    until(&format!("{name} to be taken: {spec}"), async || {
        match server.answer(&call).await {
            Ok(_) => Some(()),
            Err(refusal) if refusal.code == 403 => None,
            // It was, and the answer was lost.
            Err(refusal) if refusal.code == 409 => Some(()),
            Err(refusal) => panic!("{refusal:?}"),
        }
    })
    .await;
}

async fn until_refused(server: &Server, spec: &Value, sentence: &str) {
    until(
        &format!("{spec} to be refused: {sentence}"),
        async || match tried(server, "wrong", spec).await {
            Err(refusal) if refusal.code == 403 => {
                assert!(refusal.message.contains(sentence), "{}", refusal.message);
                Some(())
            }
            _ => None,
        },
    )
    .await;
}

async fn secret(server: &Server) -> SeenSecret {
    let secret = server.get(SECRET).await.unwrap();
    SeenSecret::read(secret.to_string().as_bytes()).unwrap()
}

#[test]
fn a_wrong_consumer_is_refused_and_without_the_webhook_it_is_taken() {
    run(async {
        let Some(server) = installed().await else {
            return;
        };
        let port = free_port();
        install(&server, port).await;
        node(&server, "n1", 5).await;
        for name in ["a", "lost"] {
            namespace(&server, name).await;
        }
        let options = [
            format!("--webhook=127.0.0.1:{port}"),
            "--webhook-name=127.0.0.1".to_owned(),
        ];
        let start = || Arbitrator::start_with(&kubeconfig(&server), "one", &options);
        let arbitrator = start();
        until("the webhook to be ready", async || {
            let is_ready = arbitrator.metric("webhook_ready").await > 0.0;
            (is_ready && arbitrator.metric("ready").await > 0.0).then_some(())
        })
        .await;
        // The API server sees the authority a moment later.
        let orphan = json!({"namespace": "lost", "parent": "nowhere"});
        let nowhere = "spec.parent: there is no Consumer nowhere that can be read: create the group first, or leave parent out";
        until_refused(&server, &orphan, nowhere).await;

        // A group and its member, at once: the refusal waits for the watch.
        consumer(&server, "top", &json!({})).await;
        until_taken(&server, "below", &json!({"parent": "top"})).await;
        until_taken(
            &server,
            "a",
            &json!({"namespace": "a", "parent": "below", "reserved": {"cpu": "2"}}),
        )
        .await;
        // A cycle. Where the webhook takes longer than the API server waits for it nothing is refused.
        let body = json!({"spec": {"parent": "below"}});
        let path = format!("{CONSUMERS}/top");
        let call = Call::write(Verb::Patch, "test", &path, Content::Merge, &body, true);
        let refusal = until("the cycle to be refused", async || {
            server.answer(&call).await.err()
        })
        .await;
        assert_eq!(
            refusal.message,
            "admission webhook \"consumers.plimsoll.dev\" denied the request: spec.parent: a cycle: below is this Consumer, or below it: name a group that is not"
        );
        let beyond = json!({"namespace": "b", "reserved": {"cpu": "4"}});
        let sentence = "6 would be reserved by all Consumers together, and the nodes have 5";
        until_refused(&server, &beyond, sentence).await;
        let above = json!({"namespace": "b", "hard": {"cpu": "1"}, "reserved": {"cpu": "2"}});
        until_refused(&server, &above, "2 is more than spec.hard.cpu, 1").await;
        let right = json!({"namespace": "b", "reserved": {"cpu": "3"}});
        let answer = tried(&server, "b", &right).await;
        assert!(answer.is_ok(), "{answer:?}");
        for answer in ["allowed", "refused"] {
            let name = format!("admission_requests_total{{answer=\"{answer}\"}}");
            assert!(arbitrator.metric(&name).await > 0.0, "{name}");
        }

        renewed(&server, port).await;
        until_refused(&server, &orphan, nowhere).await;

        // Away: it is taken, and told later.
        drop(arbitrator);
        consumer(&server, "orphan", &orphan).await;
        let arbitrator = start();
        until_condition(&server, "orphan", "Accepted", "False", "NoParent").await;
        until_refused(&server, &orphan, nowhere).await;
        // What was wrong before does not keep it from being changed.
        let path = format!("{CONSUMERS}/orphan");
        server.merge(&path, &json!({"spec": {"weight": 3}})).await;
        arbitrator.was_let().await;
        drop(arbitrator);
    });
}

/// The API server is told to show a certificate, and only who shows one is heard.
#[test]
fn with_authorities_of_clients_only_the_api_server_is_heard() {
    run(async {
        let Some(server) = installed().await else {
            return;
        };
        let port = free_port();
        install(&server, port).await;
        namespace(&server, "lost").await;
        let client = Client::new();
        let write = |name: &str, text: &str| {
            let path = server.path(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let options = [
            format!("--webhook=127.0.0.1:{port}"),
            "--webhook-name=127.0.0.1".to_owned(),
            format!(
                "--webhook-client-ca={}",
                write("clients.crt", &client.authority)
            ),
        ];
        let arbitrator = Arbitrator::start_with(&kubeconfig(&server), "one", &options);
        until("the webhook to be ready", async || {
            let is_ready = arbitrator.metric("webhook_ready").await > 0.0;
            (is_ready && arbitrator.metric("ready").await > 0.0).then_some(())
        })
        .await;
        // It shows none, and nothing waits for the webhook.
        let orphan = json!({"namespace": "lost", "parent": "nowhere"});
        let answer = tried(&server, "orphan", &orphan).await;
        assert!(answer.is_ok(), "{answer:?}");
        let user = json!({"client-certificate": write("client.crt", &client.certificate), "client-key": write("client.key", &client.key)});
        let config = json!({"apiVersion": "v1", "kind": "Config", "users": [{"name": format!("127.0.0.1:{port}"), "user": user}]});
        let config = write("webhooks.conf", &config.to_string());
        let group = "apiserver.config.k8s.io/v1";
        let admission = json!({"apiVersion": group, "kind": "AdmissionConfiguration", "plugins": [{"name": "ValidatingAdmissionWebhook",
            "configuration": {"apiVersion": group, "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": config}}]});
        write(ADMISSION, &admission.to_string());
        server.stop();
        server.run().await;
        until_refused(&server, &orphan, "there is no Consumer nowhere").await;
    });
}

/// A certificate that ends in twenty days gives way to another one.
async fn renewed(server: &Server, port: u16) {
    let old = certificate::make("127.0.0.1", unix_ms() - 70 * DAY_MS).unwrap();
    until("the older certificate to be stored", async || {
        let call = secret(server).await.replace("plimsoll", &old);
        server.answer(&call).await.ok()
    })
    .await;
    let renewed = until("another certificate", async || {
        let seen = secret(server).await.pair;
        (seen.certificate != old.certificate).then_some(seen)
    })
    .await;
    // The API server trusts both for now.
    assert!(renewed.authorities.ends_with(&old.authorities));
    let authority = renewed.authorities.replace(&old.authorities, "");
    until("it to be served", async || {
        connect(port, &authority).await.ok()
    })
    .await;
    let path = format!("{CONFIGURATIONS}/plimsoll-arbitrator");
    let configuration = server.get(&path).await.unwrap();
    let bundle = &configuration["webhooks"][0]["clientConfig"]["caBundle"];
    let secret = server.get(SECRET).await.unwrap();
    assert_eq!(*bundle, secret["data"]["ca.crt"]);
    let labels = &secret["metadata"]["labels"];
    assert_eq!(labels["app.kubernetes.io/name"], "plimsoll-arbitrator");
}
