//! The files of pins: `node.pins_dir`/TENANT.toml has the approved definitions of the tenant's servers.
//!
//! An operator writes them with `roundhouse pin`, and keeps them with the settings. A node only reads them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use audit::{Entry, FieldValue, Recorder};
use catalog::{Deviation, Observer, Part, Pin, Pinned, ServerPins, TenantPins};
use serde::{Deserialize, Serialize};

use crate::files;
use crate::settings::{Settings, TenantSettings};

/// The format that this version writes, and the only one that it reads.
const FORMAT: u32 = 1;

/// What a file of pins begins with.
const HEAD: &str = "\
# The approved definitions of tools, prompts and instructions. Written by `roundhouse pin`: review each change.
";

/// A file of pins.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PinFile {
    format: u32,
    /// By the names of backends.
    #[serde(default)]
    pub(crate) servers: BTreeMap<String, ServerPins>,
}

impl PinFile {
    pub(crate) fn new(servers: BTreeMap<String, ServerPins>) -> Self {
        Self { format: FORMAT, servers }
    }

    /// Reads the file of a tenant. An error names it, and the remedy.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = files::text("node.pins_dir", path)?;
        let wrong = |why: &str| {
            format!("`node.pins_dir`: {}: {why}; write it with `roundhouse pin`", path.display())
        };
        let read: Self = toml::from_str(&text).map_err(|error| wrong(error.message()))?;
        match read.format {
            FORMAT => Ok(read),
            _ => Err(wrong("another version of Roundhouse has written it")),
        }
    }

    /// The text of the file.
    pub(crate) fn text(&self) -> Result<String, toml::ser::Error> {
        Ok(format!("{HEAD}{}", toml::to_string(self)?))
    }
}

/// The file of a tenant.
pub(crate) fn file_of(settings: &Settings, tenant: &str) -> PathBuf {
    settings.node.pins_dir.join(format!("{tenant}.toml"))
}

/// The file of a tenant that compares definitions with it.
pub(crate) fn used_file_of(
    settings: &Settings,
    tenant: &str,
    written: &TenantSettings,
) -> Option<PathBuf> {
    let has_pins = written.backends.values().any(|backend| backend.member().pin != Pin::Off);
    has_pins.then(|| file_of(settings, tenant))
}

/// No definition of a tenant's servers is compared.
pub(crate) fn off(written: &TenantSettings) -> TenantPins {
    let names = written.backends.keys().map(|name| Arc::from(name.as_str()));
    TenantPins::new(names.map(|name| (name, Pinned::default())))
}

/// What is approved of the servers of a tenant, or everything that is wrong.
pub(crate) fn of_tenant(
    settings: &Settings,
    tenant: &str,
    written: &TenantSettings,
) -> Result<TenantPins, Vec<String>> {
    let Some(path) = used_file_of(settings, tenant, written) else {
        return Ok(off(written));
    };
    if settings.node.pins_dir == settings.node.tenants_dir {
        return Err(vec![
            "`node.pins_dir` is the folder of `node.tenants_dir`, where each file is a tenant; write another"
                .to_owned(),
        ]);
    }
    let is_there = path.exists();
    let mut file = match is_there {
        true => PinFile::read(&path).map_err(|why| vec![why])?,
        false => PinFile::new(BTreeMap::new()),
    };
    let (mut all, mut wrong) = (Vec::new(), Vec::new());
    for (name, backend) in &written.backends {
        let (pin, pins) = (backend.member().pin, file.servers.remove(name));
        if pin != Pin::Off && pins.is_none() {
            let lacks = if is_there { "has none of this backend" } else { "is not there" };
            wrong.push(format!(
                "`tenants.{tenant}.backends.{name}.pin` compares with fingerprints, and {} {lacks}; write \
                 them with `roundhouse pin {tenant}`",
                path.display()
            ));
        }
        let pins = Arc::new(pins.unwrap_or_default());
        all.push((Arc::from(name.as_str()), Pinned { pin, pins }));
    }
    if wrong.is_empty() { Ok(TenantPins::new(all)) } else { Err(wrong) }
}

/// Records definitions that are not the approved ones. The catalogs are made before the audit log starts.
/// Cheap to clone; all clones are of the same records.
#[derive(Clone, Default)]
pub(crate) struct PinRecords(Arc<OnceLock<Recorder>>);

impl PinRecords {
    /// The audit log has started. Before that no server has.
    pub(crate) fn write_to(&self, recorder: Recorder) {
        // A second start would be that of another node.
        let _is_first = self.0.set(recorder);
    }

    /// What catalogs call.
    pub(crate) fn observer(&self) -> Observer {
        let records = self.clone();
        Arc::new(move |deviation| records.record(&deviation))
    }

    fn record(&self, Deviation { tenant, backend, difference }: &Deviation) {
        let Some(recorder) = self.0.get() else { return };
        let about = match difference.part {
            Part::Entry(_) => Some((difference.part.as_str(), &*difference.name)),
            Part::Instructions => None,
        };
        let text = |text: String| FieldValue::Text(text.into());
        let mut fields = vec![("of", text(difference.part.as_str().to_owned()))];
        let pinned = difference.approved.map(|approved| ("pinned", text(approved.to_string())));
        fields.extend(pinned);
        fields.push(("found", text(difference.found.to_string())));
        let entry = Entry {
            about,
            fields: &fields,
            target: Some(backend),
            outcome: Some(if difference.is_refused { "refused" } else { "offered" }),
            reason: Some(if difference.approved.is_some() { "changed" } else { "new" }),
            ..Entry::default()
        };
        recorder.definition(tenant, &entry);
    }
}

#[cfg(test)]
mod tests {
    use catalog::Fingerprint;

    use super::*;

    fn pins() -> ServerPins {
        let fingerprint = Fingerprint::of_instructions("x");
        let tools = ["read_file", "odd \"name\""].map(|name| (name.to_owned(), fingerprint));
        ServerPins {
            instructions: Some(fingerprint),
            tools: tools.into(),
            prompts: BTreeMap::new(),
        }
    }

    #[test]
    fn a_file_reads_back_and_is_the_same_for_equal_pins() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("acme.toml");
        let file = PinFile::new([("files".to_owned(), pins())].into());
        let text = file.text().unwrap();
        std::fs::write(&path, &text).unwrap();
        assert_eq!(PinFile::read(&path), Ok(file.clone()));
        assert_eq!(PinFile::read(&path).unwrap().text().unwrap(), text);
        assert!(text.contains("\nread_file = \"sha256:"), "{text}");
    }

    #[test]
    fn a_file_that_is_none_is_refused_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("acme.toml");
        for wrong in [
            "format = 2\n",
            "format = 1\nmore = 1\n",
            "[servers]\n",
            "format = 1\n[servers.a.tools]\nx = 'sha256:1'\n",
            "nonsense",
        ] {
            std::fs::write(&path, wrong).unwrap();
            let refused = PinFile::read(&path).unwrap_err();
            assert!(
                refused.contains("acme.toml: ") && refused.contains("`roundhouse pin`"),
                "{refused}"
            );
        }
    }
}
