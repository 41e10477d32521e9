//! What a node does with connections whose client sends no TLS, a part of a handshake or nothing, and with
//! many handshakes at once.

use super::*;

/// Sends bytes, and returns everything that the node answers until it closes the connection.
async fn answer(base: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    let address = base.rsplit('/').next().context("no address")?;
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(bytes).await?;
    let mut answer = Vec::new();
    // A connection that is closed with bytes that were not read is reset.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.context("left open")?;
    Ok(answer)
}

/// The first bytes of a TLS connection.
fn hello() -> Result<Vec<u8>> {
    let name = "mcp.example.com".try_into()?;
    let config = Arc::new(Authority::new()?.client()?);
    let mut bytes = Vec::new();
    rustls::ClientConnection::new(config, name)?.write_tls(&mut bytes)?;
    Ok(bytes)
}

#[tokio::test]
async fn what_is_no_tls_is_closed_and_counted() -> Result<()> {
    let certified = Certified::new()?;
    let node = Node::start(&certified.setup())?;
    let plain = answer(&node.base, b"POST /demo/mcp HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
    let plain = String::from_utf8(plain)?;
    ensure!(plain.starts_with("HTTP/1.1 400") && plain.contains("https://"), "{plain}");
    counted(&node, "not_tls", 1.0).await?;
    // An alert: fatal, and the reason.
    let garbage = answer(&node.base, b"\x16\x03\x01\x00\x04\x01\x00\x00\x00garbage").await?;
    ensure!(garbage.first() == Some(&21), "{garbage:?}");
    counted(&node, "invalid", 1.0).await?;
    // A client of TLS at a listener without it.
    let other = Node::start(&Setup::demo())?;
    let told = answer(&other.base, &hello()?).await?;
    ensure!(told.starts_with(b"HTTP/1.1 400"), "{told:?}");
    counted(&other, "listener_without_tls", 1.0).await
}

#[tokio::test]
async fn a_client_that_keeps_a_node_waiting_loses_its_connection() -> Result<()> {
    let certified = Certified::new()?;
    let setup = certified.setup().with("front.head_timeout_secs", 1);
    let node = Node::start(&setup.with("front.keep_alive_secs", 4))?;
    let hello = hello()?;
    let lasted = |began: Instant, secs: u128| {
        let lasted = began.elapsed().as_millis();
        ensure!((secs * 1_000 - 50..secs * 1_000 + 2_500).contains(&lasted), "{lasted} ms");
        Ok(())
    };
    let sent = [(&b""[..], 4), (&hello[..1], 1), (&hello[..hello.len() - 1], 1), (&hello, 1)];
    for (bytes, secs) in sent {
        let began = Instant::now();
        let told = answer(&node.base, bytes).await?;
        ensure!(!told.starts_with(b"HTTP"), "an answer without encryption: {told:?}");
        lasted(began, secs).with_context(|| format!("{bytes:?}"))?;
    }
    // Each byte of a handshake gives it no further time.
    let began = Instant::now();
    let mut stream =
        TcpStream::connect(node.base.rsplit('/').next().context("no address")?).await?;
    for byte in &hello {
        if stream.write_all(&[*byte]).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    lasted(began, 1)?;
    counted(&node, "unfinished", 5.0).await?;
    // Behind the handshake a client may be silent for as long as on an idle connection, and each head has a time
    // of its own.
    let began = Instant::now();
    let mut silent = connect(&node.base, certified.client()?, "mcp.example.com").await?;
    let mut stream = connect(&node.base, certified.client()?, "mcp.example.com").await?;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let head = "GET /unknown HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let mut first = [0; 4096];
    let length = stream.read(&mut first).await?;
    ensure!(first[..length].starts_with(b"HTTP/1.1 404"));
    let mut told = String::new();
    silent.read_to_string(&mut told).await?;
    ensure!(told.is_empty(), "{told}");
    lasted(began, 4)?;
    for is_first in [true, false] {
        let mut stream = connect(&node.base, certified.client()?, "mcp.example.com").await?;
        if !is_first {
            stream.write_all(head.as_bytes()).await?;
            ensure!(stream.read(&mut first).await? > 0);
        }
        let began = Instant::now();
        stream.write_all(&head.as_bytes()[..10]).await?;
        let mut told = String::new();
        stream.read_to_string(&mut told).await?;
        ensure!(told.starts_with("HTTP/1.1 408"), "{told}");
        lasted(began, 1)?;
    }
    Ok(())
}

/// The handshakes of all these clients take far longer than a call. Without permits a call waits for
/// hundreds of them.
#[tokio::test]
async fn a_flood_of_handshakes_does_not_keep_a_client_from_its_calls() -> Result<()> {
    const FLOOD: usize = 800;
    let certified = Certified::new()?;
    let node = Node::start(&certified.setup().with("front.workers", 1))?;
    let tunnel = certified.tunnel(&[&node]).await?;
    let client = Client::open(tunnel.mcp("demo"), NEWEST).await?.keeping_connections();
    client.tool("rh_echo", json!({})).await?;
    let hello = hello()?;
    let address = node.base.strip_prefix("https://").context("not https")?;
    let mut flood = Vec::new();
    for _ in 0..FLOOD {
        flood.push(TcpStream::connect(address).await?);
    }
    let mut calls = 0;
    for connection in &mut flood {
        connection.write_all(&hello).await?;
    }
    let answered = async {
        for connection in &mut flood {
            connection.read_exact(&mut [0]).await?;
        }
        anyhow::Ok(())
    };
    let calling = async {
        loop {
            client.tool("rh_echo", json!({})).await?;
            calls += 1;
        }
    };
    tokio::select! {
        answered = answered => answered?,
        failed = calling => return failed,
    }
    // Without permits there is one, or none. On a busy machine this client gets less time than the node.
    ensure!(calls > 5, "{calls} calls during {FLOOD} handshakes");
    Ok(())
}
