//! The audit file of a node, read as an auditor reads it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::time::sleep;

use crate::Setup;

/// A folder with an audit file.
#[derive(Debug)]
pub struct Log {
    /// The folder.
    pub folder: tempfile::TempDir,
}

impl Log {
    /// An empty folder.
    pub fn new() -> Result<Self> {
        Ok(Self { folder: tempfile::tempdir()? })
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("audit.jsonl")
    }

    /// The same node, which writes to the file.
    pub fn of(&self, setup: Setup) -> Setup {
        setup.with("audit.to", "file").with("audit.file", self.path().display())
    }

    /// The whole lines of the file.
    pub fn records(&self) -> Result<Vec<Value>> {
        records_of(&self.path())
    }

    /// The records that fulfil a condition, once there are so many.
    pub async fn find(&self, count: usize, fits: impl Fn(&Value) -> bool) -> Result<Vec<Value>> {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let mut found = self.records()?;
            found.retain(&fits);
            if found.len() >= count {
                ensure!(found.len() == count, "more than {count}: {found:?}");
                return Ok(found);
            }
            let late = Instant::now() > until;
            ensure!(!late, "{} of {count} records in {:?}", found.len(), self.records()?);
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// The one record that fulfils a condition.
    pub async fn one(&self, fits: impl Fn(&Value) -> bool) -> Result<Value> {
        Ok(self.find(1, fits).await?.remove(0))
    }

    /// The end of the call that has this begin.
    pub async fn end_of(&self, begin: &Value) -> Result<Value> {
        self.one(|record| record["kind"] == "end" && record["call"] == begin["call"]).await
    }
}

/// The whole lines of a file.
pub fn records_of(file: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    whole.lines().map(|line| serde_json::from_str(line).context(line.to_owned())).collect()
}

/// Whether this is the begin of a call of this tool.
pub fn is_begin(record: &Value, name: &str) -> bool {
    record["kind"] == "begin" && record["tool"] == name
}
