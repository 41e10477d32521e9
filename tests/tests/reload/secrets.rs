//! Secrets to which tenants refer: they reach the servers, change while the node runs, and are shown
//! nowhere else.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tests::mcp::{Client, final_response};
use tests::{Node, Setup, tools};
use tokio::time::{sleep, timeout};

use super::{APPLIED, NEWEST, program, readyz, version, write};

/// A value of which each secret has a part.
const VALUE: &str = "hunter2";

/// The directory of a tenant's secrets, as the kubelet writes it.
fn rotate(folder: &Path, token: &str) -> Result<()> {
    let (data, next) = (folder.join("..data"), folder.join("..data_tmp"));
    let real = folder.join(format!("..{token}"));
    fs::create_dir_all(&real)?;
    fs::write(real.join("token"), format!("{VALUE}-{token}\n"))?;
    fs::set_permissions(real.join("token"), Permissions::from_mode(0o440))?;
    symlink(&*format!("..{token}"), &next)?;
    fs::rename(&next, &data)?;
    if !folder.join("token").is_symlink() {
        symlink("..data/token", folder.join("token"))?;
    }
    Ok(())
}

/// What the server of `acme` makes of its variable.
fn reversed(token: &str) -> String {
    format!("{VALUE}:{VALUE}-{token}").chars().rev().collect()
}

#[tokio::test]
async fn a_secret_reaches_new_sessions_when_it_changes_and_is_shown_nowhere() -> Result<()> {
    let secrets = tempfile::tempdir()?;
    rotate(&secrets.path().join("acme"), "one")?;
    // The server does not repeat the secret either.
    let acme = program("acme", "' + __import__('os').environ['KEY'][::-1] + '");
    let key = "env = { KEY = '${env:USER}:${file:token}' }\n";
    let good = format!("node.secrets_dir = {:?}\n{acme}{key}", secrets.path());
    let setup = Setup::config(good.clone()).with("node.reload_secs", 1);
    let node = Node::start(&setup.env("ROUNDHOUSE_SECRET_ACME__USER", VALUE))?;
    let old = Client::open(node.mcp("acme"), NEWEST).await?;
    ensure!(version(&old) == reversed("one"), "{}", old.welcome);

    rotate(&secrets.path().join("acme"), "two")?;
    let newer = async {
        while version(&Client::open(node.mcp("acme"), NEWEST).await?) != reversed("two") {
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    timeout(APPLIED, newer).await.with_context(|| node.output())??;
    // The server of the older session still runs. It answers each request in the same way.
    let message = final_response(old.send(old.message("tools/list", json!({}))).await?).await?;
    ensure!(message.to_string().contains(&reversed("one")), "{message}");

    // A secret that is not there, and one of another tenant.
    rotate(&secrets.path().join("globex"), "three")?;
    for wrong in ["${file:nowhere}", "${file:../globex/token}", "${env:NOWHERE}"] {
        let bad = good.replacen("${file:token}", wrong, 1);
        write(&node, &bad)?;
        let refused = async {
            while !readyz(&node).await?.1.contains("remark: ") {
                sleep(Duration::from_millis(50)).await;
            }
            anyhow::Ok(())
        };
        timeout(APPLIED, refused).await.with_context(|| node.output())??;
        write(&node, &good)?;
        let applied = async {
            while readyz(&node).await?.1.contains("remark: ") {
                sleep(Duration::from_millis(50)).await;
            }
            anyhow::Ok(())
        };
        timeout(APPLIED, applied).await.with_context(|| node.output())??;
    }
    let output = node.output();
    for wanted in [
        "`tenants.acme.backends.main.env.KEY`",
        "acme/nowhere",
        "needs the variable ROUNDHOUSE_SECRET_ACME__NOWHERE",
        "a secret is a file in the tenant's own directory",
    ] {
        ensure!(output.contains(wanted), "no {wanted} in {output}");
    }

    let mut check = Command::new(tools::built("roundhouse"));
    check.arg("check").arg(node.config_file()).env("PATH", tools::path());
    let checked = check.env("ROUNDHOUSE_SECRET_ACME__USER", VALUE).output()?;
    let checked = format!("{checked:?}");
    ensure!(checked.contains("tenant acme: "), "{checked}");
    let shown = [output, checked, readyz(&node).await?.1, environment(&node)];
    for text in &shown {
        let has = text.contains(VALUE) || text.contains("ROUNDHOUSE_SECRET_ACME__USER=");
        ensure!(!has, "the secret is in {text}");
    }
    Ok(())
}

/// The environment of the node's process. Only root can read it.
fn environment(node: &Node) -> String {
    let bytes = fs::read(format!("/proc/{}/environ", node.pid())).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}
