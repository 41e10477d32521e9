//! Tokens that are verified with what an issuer on loopback answers.

mod issuer;

use std::time::Duration;

use identity::{Identity, TokenProblem, Tokens};
use serde_json::{Value, json};
use tenants::{ClaimValues, Hidden, Introspection, OauthRules};

use issuer::{Issuer, keys, now, token};

const AUDIENCE: &str = "https://mcp.example/mcp";

async fn verify(
    tokens: &Tokens,
    rules: &OauthRules,
    token: &str,
) -> Result<Identity, TokenProblem> {
    let audiences = ["https://mcp.example/sse", AUDIENCE].map(str::to_owned);
    tokens.verify("acme", rules, &audiences, token).await
}

fn asking(issuer: &Issuer) -> OauthRules {
    let introspection = Some(Introspection {
        url: format!("{}/introspect", issuer.url),
        client_id: "a:b".into(),
        client_secret: Hidden::from("s+e cret".to_owned()),
    });
    OauthRules { introspection, ..OauthRules::of_issuer(&issuer.url) }
}

#[tokio::test]
async fn keys_are_found_by_the_metadata_once_for_all_tokens() {
    let issuer = Issuer::start().await;
    let (tokens, rules) = (Tokens::default(), OauthRules::of_issuer(&issuer.url));
    let good = token(&issuer.url, AUDIENCE, "ed", 7);
    let all = (0..20).map(|_| verify(&tokens, &rules, &good));
    for found in futures_util::future::join_all(all).await {
        assert_eq!(found.unwrap().principal.name(), format!("sub:{} ada", issuer.url));
    }
    assert_eq!(issuer.asked("/keys").len(), 1);
    let forged = token(&issuer.url, AUDIENCE, "ed", 8);
    assert_eq!(verify(&tokens, &rules, &forged).await, Err(TokenProblem::Signature));
    for other in ["x", "x.y", "..", "a.b.c", "a.b.c.d.e"] {
        assert!(verify(&tokens, &rules, other).await.is_err(), "{other}");
    }
    // A token whose key is unknown waits for no second fetch so soon.
    let unknown = token(&issuer.url, AUDIENCE, "new", 7);
    assert_eq!(verify(&tokens, &rules, &unknown).await, Err(TokenProblem::Key));
    assert_eq!(issuer.asked("/keys").len(), 1);
}

/// The keys are old, since no token came, and the issuer accepts connections and does not answer.
#[tokio::test]
async fn an_issuer_that_does_not_answer_delays_a_token_with_a_known_key_for_a_moment() {
    let issuer = Issuer::start().await;
    let (tokens, rules) = (Tokens::default(), OauthRules::of_issuer(&issuer.url));
    let good = token(&issuer.url, AUDIENCE, "ed", 7);
    verify(&tokens, &rules, &good).await.unwrap();
    let late = keys("ed", 7).to_string();
    issuer.answers_with("/keys", 200, "", late, Duration::from_secs(60));
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(301)).await;
    tokio::time::resume();
    for _ in 0..2 {
        let began = std::time::Instant::now();
        verify(&tokens, &rules, &good).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    }
    assert_eq!(issuer.asked("/keys").len(), 2);
}

#[tokio::test]
async fn tenants_with_keys_at_different_urls_share_none() {
    let issuer = Issuer::start().await;
    issuer.answers("/others", 200, &keys("ed", 9));
    let tokens = Tokens::default();
    let rules = |path: &str| OauthRules {
        jwks_url: format!("{}{path}", issuer.url),
        ..OauthRules::of_issuer(&issuer.url)
    };
    let [seven, nine] = [7, 9].map(|seed| token(&issuer.url, AUDIENCE, "ed", seed));
    assert!(verify(&tokens, &rules("/keys"), &seven).await.is_ok());
    let found = verify(&tokens, &rules("/others"), &seven).await;
    assert_eq!(found, Err(TokenProblem::Signature));
    assert!(verify(&tokens, &rules("/others"), &nine).await.is_ok());
    let none = "/.well-known/oauth-authorization-server";
    assert!(issuer.asked(none).is_empty(), "the settings say where the keys are");
}

#[tokio::test]
async fn metadata_that_is_wrong_leads_to_no_keys() {
    let path = "/.well-known/oauth-authorization-server";
    let other = Issuer::silent().await;
    other.answers("/keys", 200, &keys("ed", 7));
    let redirect = format!("location: {}/keys\r\n", other.url);
    let (whole, long) = (keys("ed", 7), " ".repeat(256 << 10));
    for (what, change) in [
        ("another issuer", json!({ "issuer": "https://i.example" })),
        ("an insecure place", json!({ "jwks_uri": "http://keys.example/keys" })),
        ("no place", json!({ "jwks_uri": null })),
    ] {
        let issuer = Issuer::start().await;
        let mut metadata =
            json!({ "issuer": issuer.url, "jwks_uri": format!("{}/keys", issuer.url) });
        for (key, value) in change.as_object().unwrap() {
            metadata[key] = value.clone();
        }
        issuer.answers(path, 200, &metadata);
        let rules = OauthRules::of_issuer(&issuer.url);
        let good = token(&issuer.url, AUDIENCE, "ed", 7);
        let found = verify(&Tokens::default(), &rules, &good).await;
        assert_eq!(found, Err(TokenProblem::Unavailable), "{what}");
    }
    for (what, status, headers, body) in [
        ("another status", 500, "", whole.to_string()),
        ("no content", 204, "", String::new()),
        ("a redirect", 302, &*redirect, whole.to_string()),
        ("a body that is too long", 200, "", format!("{whole}{long}")),
        ("no set", 200, "", "[]".into()),
    ] {
        let issuer = Issuer::start().await;
        issuer.answers_with("/keys", status, headers, body, Duration::ZERO);
        let rules = OauthRules::of_issuer(&issuer.url);
        let good = token(&issuer.url, AUDIENCE, "ed", 7);
        let found = verify(&Tokens::default(), &rules, &good).await;
        assert_eq!(found, Err(TokenProblem::Unavailable), "{what}");
        assert_eq!(issuer.asked("/keys").len(), 1);
    }
    assert!(other.asked("/keys").is_empty(), "a redirect was followed");
}

/// What the issuer says of an opaque token counts as a JWT would.
#[tokio::test]
async fn each_part_of_an_introspection_refuses_a_token_by_itself() {
    let issuer = Issuer::silent().await;
    let claims = ClaimValues::of([("groups", "a")]);
    let (tokens, rules) = (Tokens::default(), OauthRules { claims, ..asking(&issuer) });
    let good = json!({
        "active": true, "sub": "ada", "aud": AUDIENCE, "exp": now() + 60, "iss": issuer.url,
        "groups": ["a", "b"]
    });
    let refused = TokenProblem::Audience;
    for (claim, value, expected) in [
        ("x", json!(1), None),
        ("iss", Value::Null, None),
        ("aud", json!(["x", AUDIENCE]), None),
        ("active", json!(false), Some(TokenProblem::Inactive)),
        ("active", Value::Null, Some(TokenProblem::Unavailable)),
        ("active", json!("true"), Some(TokenProblem::Unavailable)),
        ("iss", json!("https://i.example"), Some(TokenProblem::Issuer)),
        ("aud", json!("https://other.example/mcp"), Some(refused)),
        ("aud", json!(format!("{AUDIENCE} x")), Some(refused)),
        ("aud", json!([format!("{AUDIENCE}/")]), Some(refused)),
        ("aud", Value::Null, Some(refused)),
        ("exp", json!(now() - 1), None),
        ("exp", json!(now() - 60), Some(TokenProblem::Expired)),
        ("exp", Value::Null, Some(TokenProblem::NoEnd)),
        ("iat", json!(now() + 60), Some(TokenProblem::NotYet)),
        ("sub", Value::Null, Some(TokenProblem::NoSubject)),
        ("at_hash", json!("x"), Some(TokenProblem::Kind)),
    ] {
        let mut says = good.clone();
        match value {
            Value::Null => drop(says.as_object_mut().unwrap().remove(claim)),
            ref value => says[claim] = value.clone(),
        }
        issuer.answers("/introspect", 200, &says);
        let found = verify(&tokens, &rules, "opaque").await;
        assert_eq!(found.as_ref().err(), expected.as_ref(), "{claim}: {value}");
        if let Ok(identity) = found {
            assert_eq!(identity.claims, ClaimValues::of([("groups", "a")]));
        }
    }
    issuer.answers("/introspect", 401, &good);
    assert_eq!(verify(&tokens, &rules, "opaque").await, Err(TokenProblem::Unavailable));
}

#[tokio::test]
async fn an_issuer_is_asked_in_its_own_form_about_tokens_that_are_no_jwt() {
    let issuer = Issuer::silent().await;
    let (tokens, rules) = (Tokens::default(), asking(&issuer));
    let says = json!({ "active": true, "sub": "ada", "aud": AUDIENCE, "exp": now() + 60 });
    issuer.answers("/introspect", 200, &says);
    for token in ["a+b/c=&active=true", "a.b.c.d.e", "a.b"] {
        assert!(verify(&tokens, &rules, token).await.is_ok(), "{token}");
    }
    let asked = issuer.asked("/introspect");
    assert_eq!(asked[0].body, "token=a%2Bb%2Fc%3D%26active%3Dtrue&token_type_hint=access_token");
    // `a%3Ab:s%2Be+cret`
    assert_eq!(asked[0].authorization.as_deref(), Some("Basic YSUzQWI6cyUyQmUrY3JldA=="));
    // A JWT is never asked about, and an opaque token only where the settings say where.
    assert!(verify(&tokens, &rules, "a.b.c").await.is_err());
    assert_eq!(issuer.asked("/introspect").len(), 3);
    let no_place = OauthRules::of_issuer(&issuer.url);
    assert_eq!(verify(&tokens, &no_place, "opaque").await, Err(TokenProblem::Form));
}

/// One tenant's opaque tokens cannot keep those of another waiting.
#[tokio::test]
async fn each_tenant_has_its_own_places_at_an_issuer() {
    let issuer = Issuer::silent().await;
    let (tokens, rules) = (Tokens::default(), asking(&issuer));
    let says = json!({ "active": true, "sub": "ada", "aud": AUDIENCE, "exp": now() + 60 });
    let slow = Duration::from_secs(3);
    issuer.answers_with("/introspect", 200, "", says.to_string(), slow);
    let audiences = [AUDIENCE.to_owned()];
    let ask = |tenant| tokens.verify(tenant, &rules, &audiences, "opaque");
    let many = futures_util::future::join_all((0..40).map(|_| ask("acme")));
    let beside = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        ask("beside").await
    };
    let (many, beside) = tokio::join!(many, beside);
    assert!(beside.is_ok(), "{beside:?}");
    let refused = many.iter().filter(|found| **found == Err(TokenProblem::Unavailable)).count();
    assert_eq!(refused, 8, "32 at a time");
}

/// Tokens that ended in 2023, signed by keys of each kind. What is wrong with them is only that, if their
/// signature is accepted.
#[tokio::test]
async fn each_algorithm_is_verified_and_short_keys_are_not() {
    let all: Value = serde_json::from_str(include_str!("expired.json")).unwrap();
    let issuer = Issuer::silent().await;
    issuer.answers("/keys", 200, &json!({ "keys": all["keys"] }));
    let jwks_url = format!("{}/keys", issuer.url);
    let rules = OauthRules { jwks_url, ..OauthRules::of_issuer("https://i.example") };
    let tokens = Tokens::default();
    let mut seen = Vec::new();
    for one in all["tokens"].as_array().unwrap() {
        let (alg, kid) = (one["alg"].as_str().unwrap(), one["kid"].as_str().unwrap());
        let token = one["token"].as_str().unwrap();
        // An RSA key of 1,024 bits.
        let is_short = kid == "short";
        let expected = if is_short { TokenProblem::Signature } else { TokenProblem::Expired };
        assert_eq!(verify(&tokens, &rules, token).await, Err(expected), "{alg} {kid}");
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let reversed: String = signature.chars().rev().collect();
        let forged = verify(&tokens, &rules, &format!("{signed}.{reversed}")).await;
        assert!(matches!(forged, Err(TokenProblem::Signature | TokenProblem::Form)), "{alg}");
        seen.push(alg);
    }
    for alg in ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384"] {
        assert!(seen.contains(&alg), "{alg}");
    }
}
