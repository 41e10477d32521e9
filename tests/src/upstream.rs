//! A node as the server over HTTP of others: its fixture records the runs of its tools.

use anyhow::Result;

use crate::node::{Node, Setup};

/// A node whose demo records the runs of its tools, as the server of the others.
#[derive(Debug)]
pub struct Upstream {
    /// The node.
    pub node: Node,
    folder: tempfile::TempDir,
}

impl Upstream {
    /// Starts it.
    pub fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let runs = folder.path().join("runs");
        std::fs::write(&runs, "")?;
        let setup = Setup::demo().env("EVERYTHING_RECORD", &runs.display().to_string());
        Ok(Self { node: Node::start(&setup)?, folder })
    }

    /// The number of runs of tools that were given this key.
    pub fn runs(&self, key: &str) -> Result<usize> {
        let runs = std::fs::read_to_string(self.folder.path().join("runs"))?;
        Ok(runs.lines().filter(|line| line.split(' ').next() == Some(key)).count())
    }

    /// The sessions that were begun so far.
    pub fn sessions_begun(&self) -> usize {
        self.node.output().matches("session opened").count()
    }
}
