//! Where an issuer publishes its keys: its metadata (RFC 8414, and OpenID Connect Discovery).

use std::sync::Arc;

use serde::Deserialize;
use tenants::is_fetchable;

use crate::http::{ANSWER_BYTES_MAX, Client, Failed};

/// What counts of an issuer's metadata.
#[derive(Deserialize)]
struct Metadata {
    issuer: String,
    jwks_uri: String,
}

/// Where the metadata of an issuer is by RFC 8414.
pub fn server_metadata_url(issuer: &str) -> String {
    let (origin, path) = split(issuer);
    format!("{origin}/.well-known/oauth-authorization-server{path}")
}

/// The origin of an issuer, and its path without a slash at the end.
fn split(issuer: &str) -> (&str, &str) {
    let whole = issuer.trim_end_matches('/');
    let begin = whole.find("://").map_or(0, |at| at + 3);
    match whole[begin..].find('/') {
        Some(at) => whole.split_at(begin + at),
        None => (whole, ""),
    }
}

/// The URLs at which the metadata may be, in the order in which the MCP specification has clients try
/// them.
fn metadata_urls(issuer: &str) -> Vec<String> {
    let (origin, path) = split(issuer);
    let mut urls = vec![
        server_metadata_url(issuer),
        format!("{origin}/.well-known/openid-configuration{path}"),
    ];
    if !path.is_empty() {
        urls.push(format!("{origin}{path}/.well-known/openid-configuration"));
    }
    urls
}

/// The URL of the keys of this issuer.
pub(crate) async fn find_keys(
    client: &Client,
    asker: &Arc<str>,
    issuer: &str,
) -> Result<String, Failed> {
    let mut failed = None;
    for url in metadata_urls(issuer) {
        let metadata = match client.get(asker, &url, ANSWER_BYTES_MAX).await {
            Ok(body) => serde_json::from_slice::<Metadata>(&body),
            Err(error) => {
                failed.get_or_insert(error);
                continue;
            }
        };
        let Ok(metadata) = metadata else {
            failed.get_or_insert(Failed::Form("the metadata of an issuer with `jwks_uri`"));
            continue;
        };
        if metadata.issuer != issuer {
            failed.get_or_insert(Failed::OtherIssuer);
            continue;
        }
        let may_be_there = may_have_keys_at(issuer, &metadata.jwks_uri);
        return if may_be_there { Ok(metadata.jwks_uri) } else { Err(Failed::Insecure) };
    }
    Err(failed.unwrap_or(Failed::Form("there")))
}

/// Whether the keys of an issuer may be at this URL. An issuer on loopback may have its keys there; one
/// elsewhere must not send this node there.
fn may_have_keys_at(issuer: &str, url: &str) -> bool {
    let is_local = issuer.starts_with("http://");
    is_fetchable(url) && (is_local || url.starts_with("https://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metadata_of_an_issuer_is_looked_for_as_clients_look_for_it() {
        let all = metadata_urls("https://i.example/a/");
        assert_eq!(
            all,
            [
                "https://i.example/.well-known/oauth-authorization-server/a",
                "https://i.example/.well-known/openid-configuration/a",
                "https://i.example/a/.well-known/openid-configuration",
            ]
        );
        let all = metadata_urls("https://i.example");
        assert_eq!(all[1], "https://i.example/.well-known/openid-configuration");
        assert_eq!(all.len(), 2);
    }

    #[test]
    fn an_issuer_elsewhere_sends_no_node_to_its_own_machine() {
        let (local, remote) = ("http://127.0.0.1:1", "https://i.example");
        for (issuer, url, may) in [
            (remote, "https://keys.example/k", true),
            (remote, "http://127.0.0.1/k", false),
            (remote, "http://localhost/k", false),
            (remote, "http://keys.example/k", false),
            (remote, "file:///etc/keys", false),
            (local, "http://127.0.0.1:2/k", true),
            (local, "https://keys.example/k", true),
            (local, "http://keys.example/k", false),
        ] {
            assert_eq!(may_have_keys_at(issuer, url), may, "{issuer} {url}");
        }
    }
}
