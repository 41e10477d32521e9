//! The files of which the settings of a node are made.

use std::path::PathBuf;

use crate::settings::{BackendSettings, Digests, FILE_BYTES_MAX, Settings, TenantSettings, folder};
use crate::{pins, secrets};

/// The files of which the settings of a node are made: the settings file, the files of the folder of
/// tenants, the files that tenants name, and the token of operators.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    file: Option<PathBuf>,
    tenants_dir: PathBuf,
    named: Vec<PathBuf>,
}

impl Watched {
    /// The files of these settings, which were read from `file`.
    pub(super) fn new(file: Option<PathBuf>, settings: &Settings) -> Self {
        let named = settings.tenants.iter();
        let named = named.flat_map(|(name, tenant)| {
            let mut files = files_of(name, tenant, settings);
            let secret = tenant.tenant.oauth.client_secret.expose().to_owned();
            let secret = std::iter::once(&secret);
            files.extend(secrets::files_of(&settings.node.secrets_dir, name, secret));
            files.extend(pins::used_file_of(settings, name, tenant));
            files
        });
        let token = Some(&settings.admin.token_file).filter(|file| !file.as_os_str().is_empty());
        let named = named.chain(token.cloned()).collect();
        Self { file, tenants_dir: settings.node.tenants_dir.clone(), named }
    }

    /// The contents of all files as they are now. Blocks.
    pub(super) fn digests(&self) -> Digests {
        let mut digests = self.digests_of_settings();
        digests.extend(self.digests_of_named());
        digests
    }

    /// The contents of the files that are settings. Blocks.
    pub(super) fn digests_of_settings(&self) -> Digests {
        let file = self.file.iter().map(|file| (file.clone(), FILE_BYTES_MAX));
        let mut tenants = Vec::new();
        if !self.tenants_dir.as_os_str().is_empty() {
            // A folder that cannot be read is a problem that reading the settings reports.
            tenants = folder::files(&self.tenants_dir).unwrap_or_default();
        }
        let tenants = tenants.into_iter().map(|tenant| (tenant.path, folder::FILE_BYTES_MAX));
        Digests::of(file.chain(tenants))
    }

    /// The contents of the files that settings name. Blocks.
    pub(super) fn digests_of_named(&self) -> Digests {
        Digests::of(self.named.iter().map(|file| (file.clone(), FILE_BYTES_MAX)))
    }
}

/// The files that a tenant names, and whose contents its servers get: files of variables and secrets.
fn files_of(name: &str, tenant: &TenantSettings, settings: &Settings) -> Vec<PathBuf> {
    tenant.backends.values().flat_map(|backend| files_of_backend(name, backend, settings)).collect()
}

/// Those that one backend of the tenant names.
pub(super) fn files_of_backend(
    tenant: &str,
    backend: &BackendSettings,
    settings: &Settings,
) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let values: Vec<&String> = match backend {
        BackendSettings::Stdio(stdio) => {
            if !stdio.env_file.as_os_str().is_empty() {
                files.push(stdio.env_file.clone());
            }
            stdio.program.env.values().collect()
        }
        BackendSettings::Http(http) => {
            let credential = &http.http.credential;
            let of_credential = [&credential.client_secret, &credential.sign_in.client_secret];
            let of_credential = of_credential.map(|secret| secret.expose().to_owned());
            files.extend(secrets::files_of(
                &settings.node.secrets_dir,
                tenant,
                of_credential.iter(),
            ));
            http.http.headers.values().chain([&http.http.url]).collect()
        }
        BackendSettings::Native(_) => return files,
    };
    files.extend(secrets::files_of(&settings.node.secrets_dir, tenant, values.into_iter()));
    files
}
