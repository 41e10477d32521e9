//! Opens connections, and reads the role of the server at the other end.

use std::io;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::ErrorKind;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo,
    IntoConnectionInfo, Pipeline, RedisConnectionInfo, TlsCertificates, Value,
};
use tokio::time::{Instant, timeout, timeout_at};

use super::address::Address;
use super::settings::{Invalid, Login, Settings};
use super::{script, warnings};
use crate::PrimaryId;

/// How long to wait for the answers of other servers after the first answer.
const GRACE: Duration = Duration::from_millis(100);

/// How many requests may wait to be written to a connection. Further requests wait in their
/// callers.
const WRITES_MAX: usize = 128;

/// The parameters of connections, without the address.
#[derive(Clone)]
pub(super) struct Dialer {
    login: Login,
    db: i64,
    tls: Option<TlsCertificates>,
    timeout: Duration,
}

impl Dialer {
    /// `login` may differ from the URL's: Sentinels have logins of their own.
    pub(super) fn new(
        settings: &Settings,
        tls: bool,
        login: Login,
        db: i64,
    ) -> Result<Self, Invalid> {
        let pem = |text: &str| (!text.is_empty()).then(|| text.as_bytes().to_vec());
        let client_tls = pem(&settings.certificate).map(|client_cert| ClientTlsConfig {
            client_cert,
            client_key: settings.key.0.as_bytes().to_vec(),
        });
        let tls = tls.then(|| TlsCertificates { client_tls, root_cert: pem(&settings.ca) });
        let dialer = Self { login, db, tls, timeout: settings.connect_timeout() };
        // Parses the certificates, so that an invalid one is an error at the start.
        dialer.client(&Address { host: "localhost".into(), port: 1 }).map_err(|_| Invalid::Pem)?;
        Ok(dialer)
    }

    /// Opens a connection and logs in, to a server of any role.
    pub(super) async fn dial(&self, address: &Address) -> io::Result<MultiplexedConnection> {
        // The callers set the timeouts of answers, which also end requests not yet written.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(WRITES_MAX);
        let client = self.client(address).map_err(io::Error::other)?;
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        match timeout(self.timeout, connecting).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(redis_error(address, &error)),
            Err(_) => Err(timeout_error(address)),
        }
    }

    /// Opens a connection to a primary and loads every script. Returns also the primary's id.
    pub(super) async fn dial_primary(
        &self,
        address: &Address,
    ) -> io::Result<(MultiplexedConnection, PrimaryId)> {
        let mut connection = self.dial(address).await?;
        let mut pipeline = script::load_all();
        for section in ["memory", "persistence", "replication"] {
            pipeline.cmd("INFO").arg(section);
        }
        let mut answers = self.query(&mut connection, address, &pipeline).await?;
        let info = answers.split_off(answers.len().saturating_sub(3));
        let primary = info.get(2).and_then(primary_in);
        if let Some(Value::ServerError(error)) =
            answers.iter().find(|answer| matches!(answer, Value::ServerError(_)))
        {
            let remedy = match error.code() {
                "NOAUTH" => {
                    "; it demands a password: write `store.password_file`, or `store.password`"
                }
                "NOPERM" => {
                    "; its user lacks rights: give it those of docs/redis.md, or name another \
                     `store.user`"
                }
                _ => "",
            };
            let why =
                format!("redis at {address} refused to load a script: {}{remedy}", error.code());
            return Err(io::Error::other(why));
        }
        match primary {
            Some(primary) => {
                for warning in warnings::of_server(&info[0], &info[1]) {
                    tracing::warn!(redis = %address, "{warning}");
                }
                Ok((connection, primary))
            }
            None => Err(io::Error::other(format!("redis at {address} is not a primary"))),
        }
    }

    /// Sends commands and waits for the answers, with the timeout of a connection.
    pub(super) async fn query(
        &self,
        connection: &mut MultiplexedConnection,
        address: &Address,
        pipeline: &Pipeline,
    ) -> io::Result<Vec<Value>> {
        let asking = connection.send_packed_commands(pipeline, 0, pipeline.len());
        match timeout(self.timeout, asking).await {
            Ok(Ok(values)) if values.len() == pipeline.len() => Ok(values),
            Ok(Ok(_)) => Err(io::Error::other(format!(
                "redis at {address} sent fewer answers than commands"
            ))),
            Ok(Err(error)) => Err(redis_error(address, &error)),
            Err(_) => Err(timeout_error(address)),
        }
    }

    /// Connects to all addresses and sends each the same commands. Returns the answers that
    /// arrive before the timeout, and at most [`GRACE`] after the first.
    pub(super) async fn query_all(
        &self,
        addresses: &[Address],
        pipeline: &Pipeline,
    ) -> Vec<(Address, Vec<Value>)> {
        let mut asking: FuturesUnordered<_> = addresses
            .iter()
            .map(|address| async move {
                let mut connection = self.dial(address).await?;
                let answers = self.query(&mut connection, address, pipeline).await?;
                io::Result::Ok((address.clone(), answers))
            })
            .collect();
        let mut gathered = Vec::new();
        let mut until = Instant::now() + 2 * self.timeout;
        while let Ok(Some(answer)) = timeout_at(until, asking.next()).await {
            if let Ok(answer) = answer {
                gathered.push(answer);
                until = until.min(Instant::now() + GRACE);
            }
        }
        gathered
    }

    fn client(&self, Address { host, port }: &Address) -> redis::RedisResult<Client> {
        let mut login = RedisConnectionInfo::default().set_db(self.db).set_skip_set_lib_name();
        if !self.login.user.is_empty() {
            login = login.set_username(&self.login.user);
        }
        if !self.login.password.0.is_empty() {
            login = login.set_password(&self.login.password.0);
        }
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = |addr: ConnectionAddr| -> redis::RedisResult<ConnectionInfo> {
            let info = addr.into_connection_info()?;
            Ok(info.set_redis_settings(login).set_tcp_settings(tcp))
        };
        let (host, port) = (host.clone(), *port);
        match &self.tls {
            None => Client::open(info(ConnectionAddr::Tcp(host, port))?),
            Some(certificates) => {
                let addr = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
                Client::build_with_tls(info(addr)?, certificates.clone())
            }
        }
    }
}

/// The id of the primary in an answer to `INFO replication`; `None` if the server is a replica.
pub(super) fn primary_in(info: &Value) -> Option<PrimaryId> {
    if warnings::field(info, "role")? != "master" {
        return None;
    }
    // 128 of the 160 bits are enough to tell primaries apart.
    u128::from_str_radix(warnings::field(info, "master_replid")?.get(..32)?, 16).ok().map(PrimaryId)
}

/// An error of the library, with the address. It never contains a password.
pub(super) fn redis_error(address: &Address, error: &redis::RedisError) -> io::Error {
    let remedy = match error.kind() {
        ErrorKind::AuthenticationFailed => {
            "; Redis refuses the login: check `store.user` and `store.password_file`, or the login \
             in `store.url`"
        }
        _ => "",
    };
    io::Error::other(format!("{address}: {error}{remedy}"))
}

pub(super) fn timeout_error(address: &Address) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("redis at {address} did not answer in time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_primary_is_identified_by_its_replication_id() {
        let info = |text: &str| primary_in(&Value::BulkString(text.as_bytes().to_vec()));
        let id = "0123456789abcdef0123456789abcdef01234567";
        let primary = info(&format!("# Replication\r\nrole:master\r\nmaster_replid:{id}\r\n"));
        assert_eq!(primary, Some(PrimaryId(0x0123456789abcdef0123456789abcdef)));
        assert_eq!(info(&format!("role:slave\r\nmaster_replid:{id}\r\n")), None);
        assert_eq!(info("role:master\r\n"), None);
    }
}
