//! Where the tokens of users are kept between requests.

use std::time::Duration;

/// The store that all nodes share did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store cannot be reached")]
pub struct VaultUnavailable;

/// Keeps secrets for all nodes. What it keeps is sealed, and so are the names: the store shows neither.
#[async_trait::async_trait]
pub trait Vault: Send + Sync {
    /// Random bits, of the system.
    fn random(&self) -> Result<[u8; 32], VaultUnavailable>;

    /// The secret with this name; `None` also if it was sealed with a secret that the node does not have.
    async fn read(&self, name: &str) -> Result<Option<Vec<u8>>, VaultUnavailable>;

    /// Keeps a secret for so long.
    async fn write(
        &self,
        name: &str,
        secret: &[u8],
        within: Duration,
    ) -> Result<(), VaultUnavailable>;

    /// Takes a name for so long, unless it is taken. Of several callers one gets it.
    async fn claim(&self, name: &str, within: Duration) -> Result<bool, VaultUnavailable>;

    /// Removes a secret, and returns it. Of several callers one gets it.
    async fn take(&self, name: &str) -> Result<Option<Vec<u8>>, VaultUnavailable>;
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex;

    use super::*;

    /// A vault in memory, from which nothing expires. Others may run before each of its steps.
    #[derive(Default)]
    pub(crate) struct TestVault {
        secrets: Mutex<HashMap<String, Vec<u8>>>,
        count: Mutex<u8>,
        at_the_next_claim: Mutex<Option<(String, Vec<u8>)>>,
    }

    impl TestVault {
        /// Another caller writes this secret just before the next claim.
        pub(crate) fn write_at_the_next_claim(&self, name: &str, secret: &[u8]) {
            let write = (name.to_owned(), secret.to_vec());
            *self.at_the_next_claim.lock().unwrap() = Some(write);
        }
    }

    #[async_trait::async_trait]
    impl Vault for TestVault {
        fn random(&self) -> Result<[u8; 32], VaultUnavailable> {
            let mut count = self.count.lock().unwrap();
            *count += 1;
            Ok([*count; 32])
        }

        async fn read(&self, name: &str) -> Result<Option<Vec<u8>>, VaultUnavailable> {
            tokio::task::yield_now().await;
            Ok(self.secrets.lock().unwrap().get(name).cloned())
        }

        async fn write(
            &self,
            name: &str,
            secret: &[u8],
            _: Duration,
        ) -> Result<(), VaultUnavailable> {
            tokio::task::yield_now().await;
            self.secrets.lock().unwrap().insert(name.to_owned(), secret.to_vec());
            Ok(())
        }

        async fn claim(&self, name: &str, _: Duration) -> Result<bool, VaultUnavailable> {
            tokio::task::yield_now().await;
            let mut secrets = self.secrets.lock().unwrap();
            secrets.extend(self.at_the_next_claim.lock().unwrap().take());
            let is_free = !secrets.contains_key(name);
            if is_free {
                secrets.insert(name.to_owned(), Vec::new());
            }
            Ok(is_free)
        }

        async fn take(&self, name: &str) -> Result<Option<Vec<u8>>, VaultUnavailable> {
            tokio::task::yield_now().await;
            Ok(self.secrets.lock().unwrap().remove(name))
        }
    }
}
