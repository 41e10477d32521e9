//! Errors in the settings of a tenant. Each text states how to correct them.

/// Why a tenant cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name has no characters.
    #[error("a tenant needs a name: write [tenants.acme]")]
    NameEmpty,
    /// The name is longer than a name may be.
    #[error("the name of tenant `{name}` has {length} characters; shorten it to at most {max}")]
    NameTooLong {
        /// The beginning of the name.
        name: String,
        /// The length of the name.
        length: usize,
        /// The maximum length.
        max: usize,
    },
    /// The name has a character that the endpoint's path must not have.
    #[error(
        "the name of tenant `{name}` has {found:?} in it; use only a-z, 0-9, `-` and `_`, since \
         the name stands in the endpoint's path"
    )]
    NameCharacter {
        /// The whole name.
        name: String,
        /// The first wrong character.
        found: char,
    },
    /// The name begins with a hyphen or an underscore.
    #[error("the name of tenant `{0}` begins with - or _; begin it with a letter or a digit")]
    NameStart(String),
    /// `auth` is missing: the settings do not state which clients may use the endpoint.
    #[error(
        "`tenants.{0}.auth` is missing; write `auth = \"open\"` under [tenants.{0}] if every client \
         that can reach the endpoint may use it, `auth = \"keys\"` if each client has a key, or \
         `auth = \"oauth\"` if clients have tokens of an issuer"
    )]
    AuthMissing(String),
    /// `auth` has an unknown value.
    #[error(
        "`tenants.{name}.auth` has {written:?}, which is not known; write `auth = \"keys\"` if each \
         client has a key, `auth = \"oauth\"` if clients have tokens of an issuer, or \
         `auth = \"open\"` if every client that can reach the endpoint may use it"
    )]
    AuthUnknown {
        /// The tenant.
        name: String,
        /// The value.
        written: String,
    },
    /// `auth` lets every client in, and has another kind beside that.
    #[error(
        "`tenants.{name}.auth` is {written:?}, and `open` lets every client in; write `open` alone, or \
         leave it out"
    )]
    AuthOpenAndMore {
        /// The tenant.
        name: String,
        /// The value.
        written: String,
    },
    /// There are keys, and no client may present one.
    #[error(
        "`tenants.{0}.auth` is {1:?}, so the keys in `tenants.{0}.keys` do not count; add `keys` to \
         `auth`, or remove the keys"
    )]
    KeysOfOtherTenant(String, String),
    /// There are rules for tokens, and no client may present one.
    #[error(
        "`tenants.{0}.auth` is {1:?}, so `tenants.{0}.oauth` does not count; add `oauth` to `auth`, or \
         remove [tenants.{0}.oauth]"
    )]
    OauthOfOtherTenant(String, String),
    /// A value of the rules for tokens is wrong.
    #[error("`tenants.{tenant}.oauth.{key}` is {written:?}; {remedy}")]
    Oauth {
        /// The tenant.
        tenant: String,
        /// The key.
        key: &'static str,
        /// The value, unless it is secret.
        written: String,
        /// What to write instead.
        remedy: &'static str,
    },
    /// A tenant has too many rules.
    #[error("`tenants.{name}.permissions` has more than {max} rules; join some of them")]
    TooManyRules {
        /// The tenant.
        name: String,
        /// The maximum number.
        max: usize,
    },
    /// A value of a rule is wrong.
    #[error("`tenants.{tenant}.permissions.{name}.{key}` has {written:?}; {remedy}")]
    Permission {
        /// The tenant.
        tenant: String,
        /// The name of the rule.
        name: String,
        /// The key.
        key: &'static str,
        /// The value.
        written: String,
        /// What to write instead.
        remedy: &'static str,
    },
    /// A rule has claims, and no client may present a token.
    #[error(
        "`tenants.{tenant}.permissions.{name}.claims` applies to tokens only, and `tenants.{tenant}.auth` \
         has no `oauth`; add that, or write the rule for `scopes`"
    )]
    ClaimsWithoutTokens {
        /// The tenant.
        tenant: String,
        /// The name of the rule.
        name: String,
    },
    /// A path of a part of payloads, for audit records, that names none.
    #[error("`tenants.{tenant}.audit.fields` has {written:?}; {remedy}")]
    AuditedField {
        /// The tenant.
        tenant: String,
        /// The path.
        written: String,
        /// What to write instead.
        remedy: &'static str,
    },
    /// A tenant has too many rates.
    #[error("`tenants.{name}.rates` has more than {max} rates; join some of them")]
    TooManyRates {
        /// The tenant.
        name: String,
        /// The maximum number.
        max: usize,
    },
    /// A value of a rate is wrong.
    #[error("`tenants.{tenant}.rates.{name}.{key}` has {written:?}; {remedy}")]
    Rate {
        /// The tenant.
        tenant: String,
        /// The name of the rate.
        name: String,
        /// The key.
        key: &'static str,
        /// The value.
        written: String,
        /// What to write instead.
        remedy: &'static str,
    },
    /// Too many parts of payloads are to be in audit records.
    #[error("`tenants.{tenant}.audit.fields` has more than {max} paths; remove some of them")]
    TooManyAuditedFields {
        /// The tenant.
        tenant: String,
        /// The maximum number.
        max: usize,
    },
    /// An allowed origin cannot equal an origin that a browser sends.
    #[error("`tenants.{name}.allowed_origins` has {written:?}, which no browser sends; {remedy}")]
    Origin {
        /// The tenant.
        name: String,
        /// The origin in the settings.
        written: String,
        /// What to write instead.
        remedy: String,
    },
    /// A host at which the endpoint is served is no name of a host.
    #[error("`tenants.{name}.hosts` has {written:?}, which is no name of a host; {remedy}")]
    Host {
        /// The tenant.
        name: String,
        /// The text in the settings.
        written: String,
        /// What to write instead.
        remedy: &'static str,
    },
    /// The name of a header that pages may send is no such name.
    #[error(
        "tenant `{name}` has {written:?} in cors_headers, which is no name of a header; write names, as \
         in \"x-request-id\"; there is no wildcard"
    )]
    HeaderName {
        /// The tenant.
        name: String,
        /// What stands there.
        written: String,
    },
    /// A limit of the bytes of events that is too low to be divided among nodes, or too high.
    #[error(
        "`tenants.{name}.limits.cluster_log_bytes_per_day` is {written}; write 1000000 to \
         100000000000000, or remove it"
    )]
    LogBytesPerDay {
        /// The tenant.
        name: String,
        /// The value.
        written: u64,
    },
    /// A limit of zero, with which no client could use the endpoint.
    #[error("`tenants.{name}.{limit}` is 0, so no client could use the endpoint; write at least 1")]
    LimitZero {
        /// The tenant.
        name: String,
        /// The limit's key.
        limit: &'static str,
    },
    /// An open endpoint has keys, which no client would have to present.
    #[error(
        "`tenants.{0}.auth` is \"open\", and `tenants.{0}.keys` has keys that no client would need; \
         write `auth = \"keys\"`, or remove the keys"
    )]
    KeysOfOpenTenant(String),
    /// A tenant has too many keys.
    #[error("`tenants.{name}.keys` has more than {max} keys; remove those that are not used")]
    TooManyKeys {
        /// The tenant.
        name: String,
        /// The maximum number.
        max: usize,
    },
    /// What is written is not the SHA-256 of a key. It is not shown, since it may be secret.
    #[error(
        "`tenants.{tenant}.keys.{name}.sha256` is not a SHA-256, which has 64 hexadecimal digits; make \
         a key with `roundhouse key {tenant} NAME`, which writes it"
    )]
    KeyHash {
        /// The tenant.
        tenant: String,
        /// The name of the key.
        name: String,
    },
    /// The key itself is written where its SHA-256 belongs.
    #[error(
        "`tenants.{tenant}.keys.{name}.sha256` is a key itself, which now stands in a file; make a new \
         one with `roundhouse key {tenant} NAME`, which writes its SHA-256, and use this one no more"
    )]
    KeyInSettings {
        /// The tenant.
        tenant: String,
        /// The name of the key.
        name: String,
    },
    /// Two names have the same key.
    #[error(
        "`tenants.{tenant}.keys.{name}.sha256` is that of `tenants.{tenant}.keys.{other}` too; remove \
         one of them, or make another key"
    )]
    SameKey {
        /// The tenant.
        tenant: String,
        /// The name of the key.
        name: String,
        /// The name that has the same key.
        other: String,
    },
    /// The subject of a key has a form that no subject may have.
    #[error(
        "the subject of `tenants.{tenant}.keys.{name}` (`tenants.{tenant}.keys.{name}.subject`, or \
         else the name of the key) must have 1 to {max} visible characters of ASCII, and be no key; write another"
    )]
    KeySubject {
        /// The tenant.
        tenant: String,
        /// The name of the key.
        name: String,
        /// The most characters.
        max: usize,
    },
    /// A scope of a key is no scope.
    #[error(
        "`tenants.{tenant}.keys.{name}.scopes` has {written:?}; write each scope as a word of its own, as \
         in [\"mcp\", \"tools\"]"
    )]
    KeyScope {
        /// The tenant.
        tenant: String,
        /// The name of the key.
        name: String,
        /// The text.
        written: String,
    },
    /// The end of a key is not a time.
    #[error(
        "`tenants.{tenant}.keys.{name}.expires` is {written:?}, which is not a time; write one as in \
         \"2027-01-31T00:00:00Z\""
    )]
    KeyExpires {
        /// The tenant.
        tenant: String,
        /// The name of the key.
        name: String,
        /// What stands there.
        written: String,
    },
}
