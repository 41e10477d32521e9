//! Tokens of authorization servers, some of which send what none should send.

use std::time::{Duration, Instant};

use upstream::{
    Client, CredentialProblem, CredentialSettings, ExchangeEvent, Failure, Grant, HttpSettings,
    OauthCode,
};

use crate::server::{Answer, Server, client_of, exchange, perform_with};

const JSON: &str = "Content-Type: application/json\r\n";
const RESULT: &str = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;

fn response(status: &str, headers: &str, body: &str) -> Answer {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
    Answer::Once(format!("{head}Connection: close\r\n{headers}\r\n{body}"))
}

fn token(text: &str, secs: &str) -> Answer {
    let body = format!(r#"{{"access_token":"{text}","token_type":"Bearer","expires_in":{secs}}}"#);
    response("200 OK", JSON, &body)
}

/// The settings for this server, with tokens of this endpoint.
fn settings(server: &Server, token_url: &str) -> HttpSettings {
    let credential = CredentialSettings {
        grant: Grant::ClientCredentials,
        token_url: token_url.to_owned(),
        client_id: "node".into(),
        client_secret: "s+ecret".to_owned().into(),
        scopes: vec!["mcp".into()],
        ..CredentialSettings::default()
    };
    HttpSettings { credential, ..server.settings() }
}

async fn accepting() -> Server {
    Server::start(vec![response("200 OK", JSON, RESULT)]).await
}

/// The tokens with which a server was asked.
fn tokens(server: &Server) -> Vec<String> {
    let lines = |request: String| {
        let line = request.lines().find_map(|line| line.strip_prefix("authorization: Bearer "));
        line.unwrap_or("none").to_owned()
    };
    server.requests().into_iter().map(lines).collect()
}

/// How a call ends whose token this answer has, and whether the server got it.
async fn with(answer: Answer) -> ExchangeEvent {
    let (server, issuer) = (accepting().await, Server::start(vec![answer]).await);
    let client = client_of(&settings(&server, &issuer.url)).unwrap();
    let last = perform_with(&client, exchange()).await.pop().unwrap();
    assert_eq!(server.requests().is_empty(), last != ExchangeEvent::Ended, "{last:?}");
    last
}

fn failed(problem: CredentialProblem) -> ExchangeEvent {
    ExchangeEvent::Failed(Failure::Credential(problem))
}

#[tokio::test]
async fn the_response_of_an_authorization_server_is_charged_while_it_is_read() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 40000\r\n\r\n";
    let begun = Answer::Endless(format!("{head}{}", "x".repeat(20_000)), String::new());
    let (server, issuer) = (accepting().await, Server::start(vec![begun]).await);
    let share = budget::Budget::unlimited().unnamed_share("a");
    let client = Client::new(&share, "a/main", &settings(&server, &issuer.url)).unwrap();
    let call = perform_with(&client, exchange());
    let charged = async {
        while share.used() < budget::in_granules(20_000) {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        ended = call => panic!("{ended:?}"),
        charged = tokio::time::timeout(Duration::from_secs(4), charged) => charged.unwrap(),
    }
    let given_back = async {
        while share.used() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // The fetch goes on without the call that began it, until its own bound of 5 s.
    tokio::time::timeout(Duration::from_secs(8), given_back).await.unwrap();
}

#[tokio::test]
async fn a_token_is_read_also_if_its_tenant_keeps_as_much_as_it_may() {
    // More than one granule, so that it would be waited for if it needed room.
    let padding = "x".repeat(6_000);
    let long = response(
        "200 OK",
        JSON,
        &format!(
            r#"{{"access_token":"t1","token_type":"Bearer","expires_in":3600,"x":"{padding}"}}"#
        ),
    );
    let (server, issuer) = (accepting().await, Server::start(vec![long]).await);
    let limits = budget::ShareLimits { min: 0, max: budget::GRANULE_BYTES };
    let budget = budget::Budget::notifying(1 << 30, [("a".into(), limits)], || {});
    let share = budget.share("a").unwrap();
    share.charge(2 * budget::GRANULE_BYTES);
    let client = Client::new(&share, "a/main", &settings(&server, &issuer.url)).unwrap();
    let began = Instant::now();
    let events = perform_with(&client, exchange()).await;
    assert_eq!(events.last(), Some(&ExchangeEvent::Ended), "{events:?}");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(tokens(&server), ["t1"]);
    assert_eq!(share.used(), 2 * budget::GRANULE_BYTES);
}

#[tokio::test]
async fn one_token_is_got_for_many_requests_and_used_until_it_expires() {
    let server = accepting().await;
    let issuer = Server::start(vec![token("t1", "2"), token("t2", "3600")]).await;
    let client = client_of(&settings(&server, &issuer.url)).unwrap();
    let calls = (0..5).map(|_| perform_with(&client, exchange()));
    for events in futures_util::future::join_all(calls).await {
        assert_eq!(events.last(), Some(&ExchangeEvent::Ended), "{events:?}");
    }
    assert_eq!(tokens(&server), ["t1"; 5]);
    let asked = issuer.requests();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert!(asked[0].contains("authorization: Basic bm9kZTpzJTJCZWNyZXQ=\r\n"), "{asked:?}");
    assert!(asked[0].contains("\r\n\r\ngrant_type=client_credentials&scope=mcp&resource=http%3A"));
    tokio::time::sleep(Duration::from_secs(2)).await;
    perform_with(&client, exchange()).await;
    assert_eq!(tokens(&server).last().unwrap(), "t2");
    assert_eq!(issuer.requests().len(), 2);
}

#[tokio::test]
async fn a_token_that_the_server_refuses_is_renewed_once() {
    let refusal = |challenge: &str| response("401 Unauthorized", challenge, "");
    for challenge in ["", "WWW-Authenticate: Bearer error=\"invalid_token\"\r\n"] {
        let fine = response("200 OK", JSON, RESULT);
        let server = Server::start(vec![refusal(challenge), fine]).await;
        let issuer = Server::start(vec![token("t1", "3600"), token("t2", "3600")]).await;
        let client = client_of(&settings(&server, &issuer.url)).unwrap();
        let events = perform_with(&client, exchange()).await;
        assert_eq!(events.last(), Some(&ExchangeEvent::Ended), "{events:?}");
        assert_eq!(tokens(&server), ["t1", "t2"]);
    }
    // A server that refuses all tokens does not cause a request to the issuer for each call.
    let server = Server::start(vec![refusal("")]).await;
    let issuer = Server::start(vec![token("t1", "3600")]).await;
    let client = client_of(&settings(&server, &issuer.url)).unwrap();
    for _ in 0..4 {
        let events = perform_with(&client, exchange()).await;
        assert_eq!(events, [ExchangeEvent::Refused { status: 401, error: None }]);
    }
    assert_eq!(issuer.requests().len(), 2);
}

#[tokio::test]
async fn a_server_that_refuses_the_request_and_not_the_token_is_not_asked_again() {
    let scope = "WWW-Authenticate: Bearer error=\"insufficient_scope\"\r\n";
    let server = Server::start(vec![response("403 Forbidden", scope, "")]).await;
    let issuer = Server::start(vec![token("t1", "3600")]).await;
    let client = client_of(&settings(&server, &issuer.url)).unwrap();
    let events = perform_with(&client, exchange()).await;
    assert_eq!(events, [ExchangeEvent::Refused { status: 403, error: None }]);
    assert_eq!((tokens(&server).len(), issuer.requests().len()), (1, 1));
}

// holds: SEC-20
#[tokio::test]
async fn a_hostile_authorization_server_costs_an_error_and_sends_nothing_on() {
    let invalid = failed(CredentialProblem::Invalid);
    for secs in ["-1", "0", "\"soon\"", "[]"] {
        assert_eq!(with(token("t", secs)).await, invalid, "{secs}");
    }
    for secs in ["1e300", "\"60\"", "99999999999999999999"] {
        assert_eq!(with(token("t", secs)).await, ExchangeEvent::Ended, "{secs}");
    }
    for text in ["a\\r\\nX-Evil: y", "a b", "", &"x".repeat(9_000)] {
        assert_eq!(with(token(text, "60")).await, invalid, "{text}");
    }
    let body = r#"{"access_token":"t","token_type":"Bearer"}"#;
    assert_eq!(with(response("200 OK", "Content-Type: text/html\r\n", body)).await, invalid);
    assert_eq!(with(response("200 OK", "", body)).await, invalid);
    assert_eq!(with(response("201 Created", JSON, body)).await, invalid);
    let endless = format!("HTTP/1.1 200 OK\r\n{JSON}\r\n");
    assert_eq!(with(Answer::Endless(endless, " ".repeat(1_000))).await, invalid);
    let gzip = format!("{JSON}Content-Encoding: gzip\r\n");
    assert_eq!(with(response("200 OK", &gzip, body)).await, invalid);
    let unavailable = failed(CredentialProblem::Unavailable);
    let head = format!("X-Fill: {}\r\n", "x".repeat(1_000));
    assert_eq!(with(Answer::Endless("HTTP/1.1 200 OK\r\n".into(), head)).await, unavailable);
    assert_eq!(with(Answer::Once("no HTTP".into())).await, unavailable);
    assert_eq!(with(response("503 Busy", JSON, body)).await, unavailable);
    let refusal = r#"{"error":"invalid_client","error_description":"hunter2"}"#;
    let refused = failed(CredentialProblem::Refused(OauthCode::InvalidClient));
    assert_eq!(with(response("401 Unauthorized", JSON, refusal)).await, refused);
    let begin = Instant::now();
    assert_eq!(with(Answer::Nothing).await, unavailable);
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
}

// holds: SEC-20
#[tokio::test]
async fn the_secret_goes_to_no_other_place() {
    let other = Server::start(vec![token("t", "60")]).await;
    for status in ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"] {
        let to = format!("Location: {}\r\n", other.url);
        let last = with(response(status, &to, "")).await;
        assert_eq!(last, failed(CredentialProblem::Invalid), "{status}");
    }
    // A name that leads to an address that is not permitted.
    let server = accepting().await;
    let url = other.url.replace("127.0.0.1", "localhost");
    let mut settings = settings(&server, &url);
    settings.allow_networks.clear();
    settings.url = server.url.replace("127.0.0.1", "localhost");
    let client = client_of(&settings).unwrap();
    let events = perform_with(&client, exchange()).await;
    assert_eq!(events, [failed(CredentialProblem::NotPermitted)]);
    assert!(other.requests().is_empty() && server.requests().is_empty());
}

/// Answers with documents by path.
async fn documents(of: impl Fn(&str) -> Vec<(&'static str, String)>) -> Server {
    Server::by_path(|origin| {
        let all = of(origin);
        move |path: &str| {
            let found = all.iter().find(|(place, _)| *place == path);
            found.map_or_else(
                || response("404 Not Found", "", ""),
                |(_, body)| response("200 OK", JSON, body),
            )
        }
    })
    .await
}

fn metadata(issuer: &str, endpoint: &str) -> String {
    format!(r#"{{"issuer":"{issuer}","token_endpoint":"{endpoint}"}}"#)
}

const TOKEN: &str = r#"{"access_token":"t","token_type":"Bearer"}"#;

#[tokio::test]
async fn a_token_endpoint_is_found_by_the_metadata_of_the_issuer() {
    for place in [
        "/.well-known/oauth-authorization-server/a",
        "/.well-known/openid-configuration/a",
        "/a/.well-known/openid-configuration",
    ] {
        let issuer = documents(|origin| {
            let document = metadata(&format!("{origin}/a"), &format!("{origin}/token"));
            vec![(place, document), ("/token", TOKEN.to_owned())]
        })
        .await;
        let server = accepting().await;
        let mut settings = settings(&server, "");
        settings.credential.issuer = format!("{}/a", issuer.origin());
        let client = client_of(&settings).unwrap();
        let events = perform_with(&client, exchange()).await;
        assert_eq!(events.last(), Some(&ExchangeEvent::Ended), "{place}: {events:?}");
        perform_with(&client, exchange()).await;
        assert_eq!(tokens(&server), ["t", "t"]);
    }
}

// holds: SEC-20
#[tokio::test]
async fn metadata_of_another_issuer_or_with_an_insecure_endpoint_is_not_used() {
    for document in [
        metadata("https://other.example", "ORIGIN/token"),
        metadata("ORIGIN", "http://auth.example.com/token"),
        metadata("ORIGIN", "file:///etc/passwd"),
        "[]".to_owned(),
        String::new(),
    ] {
        let issuer = documents(|origin| {
            let document = document.replace("ORIGIN", origin);
            vec![("/.well-known/oauth-authorization-server", document), ("/token", TOKEN.into())]
        })
        .await;
        let server = accepting().await;
        let mut settings = settings(&server, "");
        settings.credential.issuer = issuer.origin().to_owned();
        let client = client_of(&settings).unwrap();
        let events = perform_with(&client, exchange()).await;
        assert_eq!(events, [failed(CredentialProblem::Invalid)], "{document}");
        assert!(!issuer.requests().iter().any(|request| request.starts_with("POST")));
    }
}

#[tokio::test]
async fn an_authorization_server_is_found_by_the_metadata_of_the_server() {
    let issuer = documents(|origin| {
        let document = metadata(origin, &format!("{origin}/token"));
        vec![("/.well-known/oauth-authorization-server", document), ("/token", TOKEN.into())]
    })
    .await;
    let protected = |resource: &str| {
        format!(r#"{{"resource":"{resource}","authorization_servers":["{}"]}}"#, issuer.origin())
    };
    for (place, resource) in [
        ("/.well-known/oauth-protected-resource/mcp", "ORIGIN/mcp"),
        ("/.well-known/oauth-protected-resource", "ORIGIN"),
        ("/.well-known/oauth-protected-resource", "https://other.example/mcp"),
    ] {
        let server = documents(|origin| {
            let document = protected(&resource.replace("ORIGIN", origin));
            vec![(place, document), ("/mcp", RESULT.to_owned())]
        })
        .await;
        let client = client_of(&settings(&server, "")).unwrap();
        let last = perform_with(&client, exchange()).await.pop();
        let expected = match resource.contains("other") {
            true => failed(CredentialProblem::Invalid),
            false => ExchangeEvent::Ended,
        };
        assert_eq!(last, Some(expected), "{resource}");
    }
}
