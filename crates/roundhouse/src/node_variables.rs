//! The environment of this process, as far as tenants' servers may get variables of it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use backends::stdio;

use crate::private_environment::is_private;

/// The variables of this process that are not its settings.
pub(crate) struct NodeVariables(BTreeMap<OsString, OsString>);

impl NodeVariables {
    /// Those of this process.
    pub(crate) fn of_process() -> Self {
        Self::of(std::env::vars_os())
    }

    pub(crate) fn of(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let is_own = |name: &OsStr| is_private(&name.to_string_lossy());
        Self(variables.into_iter().filter(|(name, _)| !is_own(name)).collect())
    }

    /// The value of a variable.
    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (OsString, OsString)> + use<> {
        self.0.clone().into_iter()
    }

    /// Adds the variables with these names, which the setting `key` lists, to those that a server
    /// gets. One that the server has already, or that is not set, is left out.
    pub(crate) fn pass(
        &self,
        key: &str,
        names: &[String],
        to: &mut BTreeMap<String, String>,
    ) -> Result<(), String> {
        for name in names {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(format!("`{key}` lists {name:?}, which is no name of a variable"));
            }
            if is_private(name) {
                return Err(format!(
                    "`{key}` lists `{name}`, which is a setting of the node or a secret of a tenant; \
                     no server gets it, so leave it out"
                ));
            }
            let Some(value) = self.get(name).filter(|_| !to.contains_key(name)) else { continue };
            let value = value.to_str().ok_or_else(|| {
                format!(
                    "`{key}` lists `{name}`, whose value in the node's environment is not UTF-8"
                )
            })?;
            to.insert(name.clone(), value.into());
        }
        Ok(())
    }

    /// A warning for each variable that `key` lists and that is not set.
    pub(crate) fn not_set(&self, key: &str, names: &[String]) -> Vec<String> {
        let missing = names.iter().filter(|name| self.get(name).is_none());
        let warning = |name| {
            format!(
                "`{key}` lists `{name}`, which is not set in the node's environment; set it there"
            )
        };
        missing.map(warning).collect()
    }

    /// A warning if servers do not get a variable of which they would get a value without
    /// credentials. `passed` are the names in `node.pass_env`.
    pub(crate) fn withheld(&self, passed: &[String]) -> Option<String> {
        let all = self.0.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()));
        let mut names = stdio::withheld(all);
        names.retain(|name| !passed.iter().any(|passed| passed == name));
        (!names.is_empty()).then(|| {
            format!(
                "stdio servers do not get {}, which may hold a user and a password; list the variable \
                 in `node.pass_env`, or in the `pass_env` of a backend, to pass it on",
                names.join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> NodeVariables {
        NodeVariables::of(pairs.iter().map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn a_variable_that_is_listed_is_passed_in_its_own_case_and_overrides_nothing() {
        let node = variables(&[("http_proxy", "a:b@c"), ("TOKEN", "t"), ("OTHER", "o")]);
        let mut env = BTreeMap::from([("TOKEN".to_owned(), "written".to_owned())]);
        let names = ["http_proxy", "TOKEN", "UNSET"].map(str::to_owned);
        node.pass("node.pass_env", &names, &mut env).unwrap();
        let wanted = [("TOKEN", "written"), ("http_proxy", "a:b@c")];
        assert_eq!(env, BTreeMap::from(wanted.map(|(name, value)| (name.into(), value.into()))));
        let [warning] = &node.not_set("node.pass_env", &names)[..] else { panic!("not one") };
        assert!(warning.contains("`UNSET`, which is not set"), "{warning}");
    }

    #[test]
    fn a_setting_of_the_node_is_never_passed() {
        let node = variables(&[("ROUNDHOUSE__CLUSTER__SECRET", "hunter2")]);
        for name in ["ROUNDHOUSE__CLUSTER__SECRET", "roundhouse__cluster__secret", "", "A=B"] {
            let mut env = BTreeMap::new();
            let refusal = node.pass("x.pass_env", &[name.to_owned()], &mut env).unwrap_err();
            assert!(refusal.contains("`x.pass_env`") && !refusal.contains("hunter2"), "{refusal}");
            assert!(env.is_empty());
        }
    }

    #[test]
    fn a_proxy_with_a_password_is_withheld_and_the_warning_repeats_no_value() {
        let node = variables(&[("HTTPS_PROXY", "http://a:hunter2@proxy"), ("NO_PROXY", "b")]);
        let warning = node.withheld(&[]).unwrap();
        assert!(warning.contains("get HTTPS_PROXY, which"), "{warning}");
        assert!(!warning.contains("hunter2"), "{warning}");
        assert_eq!(node.withheld(&["HTTPS_PROXY".to_owned()]), None);
    }
}
