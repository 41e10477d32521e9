//! Times the first sight of a token, beside the bare check of its signature by `ring`:
//! `cargo bench -p identity`. The difference is what this crate and its parsers add.
#![allow(missing_docs, reason = "criterion makes undocumented functions")]

use std::hint::black_box;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use criterion::{Criterion, criterion_group, criterion_main};
use identity::{TokenDigest, Tokens};
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde_json::{Value, json};
use tenants::{ClaimValues, OauthRules};

use signer::{ISSUER, PUBLIC_URL, Signer};

mod signer;

/// Serves the keys on loopback, for as long as the benchmark runs; returns their URL.
fn serve(keys: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/keys", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.expect("a connection");
            let head = BufReader::new(&connection).lines();
            head.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
            let length = keys.len();
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            connection.write_all((head + &keys).as_bytes()).expect("a reader");
        }
    });
    url
}

fn bytes(text: &Value) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(text.as_str().expect("a text")).expect("base64")
}

/// The bare check of the signature, with a key that was read before.
fn bare(token: &str, key: &Value) -> Box<dyn Fn() -> bool> {
    let (signed, signature) = token.rsplit_once('.').expect("a signature");
    let signature = bytes(&signature.into());
    let signed = signed.to_owned();
    match key["kty"].as_str() {
        Some("RSA") => {
            let key = RsaPublicKeyComponents { n: bytes(&key["n"]), e: bytes(&key["e"]) };
            let rs256 = &signature::RSA_PKCS1_2048_8192_SHA256;
            Box::new(move || {
                key.verify(rs256, black_box(signed.as_bytes()), black_box(&signature)).is_ok()
            })
        }
        Some("EC") => {
            let point = [vec![4], bytes(&key["x"]), bytes(&key["y"])].concat();
            let key = UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point);
            Box::new(move || {
                key.verify(black_box(signed.as_bytes()), black_box(&signature)).is_ok()
            })
        }
        _ => {
            let key = UnparsedPublicKey::new(&signature::ED25519, bytes(&key["x"]));
            Box::new(move || {
                key.verify(black_box(signed.as_bytes()), black_box(&signature)).is_ok()
            })
        }
    }
}

fn first_sight(criterion: &mut Criterion) {
    let signers = [Signer::rs256(), Signer::es256(), Signer::ed25519()];
    let keys: Vec<Value> = signers.iter().map(Signer::jwk).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let audiences = [format!("{PUBLIC_URL}/demo/mcp")];
    let rules = OauthRules {
        jwks_url: serve(json!({ "keys": keys }).to_string()),
        ..OauthRules::of_issuer(ISSUER)
    };
    let claims = ClaimValues::of([("groups", "editors"), ("realm_access.roles", "admin")]);
    let with_claims = OauthRules { claims, ..rules.clone() };
    let tokens = Tokens::default();
    for (signer, key) in std::iter::zip(&signers, &keys) {
        let (alg, token) = (signer.algorithm(), &*signer.token());
        let check = bare(token, key);
        assert!(check(), "{alg}");
        criterion.bench_function(&format!("{alg}/signature"), |b| b.iter(&check));
        let verify = |rules: &OauthRules| {
            let verified = tokens.verify("demo", rules, &audiences, black_box(token));
            runtime.block_on(verified).expect("a valid token")
        };
        criterion.bench_function(&format!("{alg}/first_sight"), |b| b.iter(|| verify(&rules)));
        let name = format!("{alg}/first_sight_with_claims");
        criterion.bench_function(&name, |b| b.iter(|| verify(&with_claims)));
    }
    let [rs256, ..] = &signers;
    let token = rs256.token();
    criterion.bench_function("digest", |b| b.iter(|| TokenDigest::of(black_box(&token))));
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = first_sight
}
criterion_main!(benches);
