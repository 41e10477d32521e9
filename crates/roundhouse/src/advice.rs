//! What an operator should change, in the log: once, also if each reload of the settings finds it again.

use std::collections::BTreeSet;

use crate::plan::Plan;

/// The advice for the settings that were applied last.
#[derive(Debug, Default)]
pub(crate) struct Advice(BTreeSet<String>);

impl Advice {
    /// What a plan advises.
    pub(crate) fn of(plan: &Plan) -> Self {
        let findings = plan.findings.findings();
        let findings = findings.iter().map(|finding| finding.without_severity());
        Self(findings.chain(plan.remarks.iter().cloned()).collect())
    }

    /// Logs everything.
    pub(crate) fn log(&self) {
        self.log_unless_in(&Self::default());
    }

    /// Takes the place of the advice for former settings, and logs what that has not said.
    pub(crate) fn replace(self, former: &mut Self) {
        self.log_unless_in(former);
        *former = self;
    }

    fn log_unless_in(&self, former: &Self) {
        self.new_since(former).for_each(|text| tracing::warn!("{text}"));
    }

    fn new_since<'a>(&'a self, former: &'a Self) -> impl Iterator<Item = &'a String> {
        self.0.difference(&former.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_logged_before_is_logged() {
        let advice = |texts: &[&str]| Advice(texts.iter().map(|text| (*text).to_owned()).collect());
        let mut former = advice(&["a", "b"]);
        let new = advice(&["b", "c"]);
        assert_eq!(new.new_since(&former).collect::<Vec<_>>(), ["c"]);
        new.replace(&mut former);
        assert_eq!(advice(&["a"]).new_since(&former).count(), 1, "it was gone meanwhile");
    }
}
