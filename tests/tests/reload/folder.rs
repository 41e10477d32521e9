//! A folder of tenants, as a team for a platform uses it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tests::mcp::Client;
use tests::{Node, Setup};
use tokio::time::{sleep, timeout};

use super::{APPLIED, NEWEST, answers, native, readyz};

/// The file of a tenant whose server runs in the node.
const TENANT: &str = "auth = 'open'\n[backends.main]\nkind = 'native'\nname = 'everything'\n";

/// A volume of Kubernetes: the visible names are links behind `..data`, which a rename changes.
struct Volume<'a>(&'a Path);

impl Volume<'_> {
    /// Replaces all files in one step, as the kubelet does.
    fn replace(&self, version: &str, files: &[(&str, &str)]) -> Result<()> {
        let (data, next) = (self.0.join("..data"), self.0.join("..data_tmp"));
        let former = fs::read_link(&data).ok();
        fs::create_dir(self.0.join(version))?;
        for (name, text) in files {
            fs::write(self.0.join(version).join(name), text)?;
        }
        symlink(version, &next)?;
        fs::rename(&next, &data)?;
        for entry in fs::read_dir(self.0)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') && !files.iter().any(|(file, _)| *file == name) {
                fs::remove_file(self.0.join(name))?;
            }
        }
        for (name, _) in files {
            if !self.0.join(name).is_symlink() {
                symlink(format!("..data/{name}"), self.0.join(name))?;
            }
        }
        if let Some(former) = former {
            fs::remove_dir_all(self.0.join(former))?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn the_tenants_of_a_folder_follow_a_volume_of_kubernetes() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let volume = Volume(dir.path());
    volume.replace("..1", &[("kept.toml", TENANT), ("removed.toml", TENANT)])?;
    let main = format!("node.tenants_dir = {:?}\n{}", dir.path(), native("main"));
    let node = Node::start(&Setup::config(main).with("node.reload_secs", 1))?;
    let kept = Client::open(node.mcp("kept"), NEWEST).await?;
    answers(&node, "main", 200).await?;
    answers(&node, "removed", 200).await?;

    volume.replace("..2", &[("kept.toml", TENANT), ("added.toml", TENANT)])?;
    answers(&node, "added", 200).await?;
    answers(&node, "removed", 404).await?;
    let ping = kept.message("ping", json!({}));
    ensure!(kept.send(ping).await?.status() == 200, "the session of another tenant ended");

    // A bad file of one team changes nothing, and is named with its line.
    volume.replace("..3", &[("kept.toml", TENANT), ("bad.toml", "auth = 'open'\nouth = 1\n")])?;
    let said = async {
        while !readyz(&node).await?.1.contains("remark: ") {
            sleep(std::time::Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    timeout(APPLIED, said).await.with_context(|| node.output())??;
    answers(&node, "added", 200).await?;
    let output = node.output();
    ensure!(output.contains("bad.toml:2: unknown key `tenants.bad.outh`"), "{output}");
    volume.replace("..4", &[("kept.toml", TENANT), ("main.toml", TENANT)])?;
    node.logs("`tenants.main` is given twice").await?;

    volume.replace("..5", &[("kept.toml", TENANT)])?;
    answers(&node, "added", 404).await?;
    ensure!(!readyz(&node).await?.1.contains("remark"), "{}", node.output());
    Ok(())
}

#[tokio::test]
async fn a_node_without_a_settings_file_serves_a_folder_and_no_demo() -> Result<()> {
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("one.toml"), TENANT)?;
    let setup = Setup::demo().with("node.reload_secs", 1);
    let node = Node::start(&setup.with("node.tenants_dir", dir.path().display()))?;
    answers(&node, "one", 200).await?;
    answers(&node, "demo", 404).await?;
    fs::write(dir.path().join("two.toml"), TENANT)?;
    answers(&node, "two", 200).await
}
