//! Metrics of the program itself. Its parts have their own in their crates.

use std::sync::LazyLock;

use budget::Budget;
use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};
use telemetry::{OTHER_TENANTS, TenantLabels, register};

static BUILD: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    register::gauges(
        "roundhouse_build_info",
        "Always 1; the label has the version of the program.",
        &["version"],
    )
});

static RELOADS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_settings_reloads_total",
        "Attempts to apply changed settings, by outcome.",
        &["outcome"],
    )
});

/// Changed files that were applied.
pub(crate) static RELOADS_APPLIED: LazyLock<IntCounter> =
    LazyLock::new(|| RELOADS.with_label_values(&["applied"]));

/// Changed files that had a problem, of which nothing was applied.
pub(crate) static RELOADS_REFUSED: LazyLock<IntCounter> =
    LazyLock::new(|| RELOADS.with_label_values(&["refused"]));

static CERTIFICATE_READS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_front_tls_reloads_total",
        "Times that changed certificates for clients were read, by outcome.",
        &["outcome"],
    )
});

/// All certificates could be read.
static CERTIFICATES_APPLIED: LazyLock<IntCounter> =
    LazyLock::new(|| CERTIFICATE_READS.with_label_values(&["applied"]));

/// At least one certificate could not be used.
static CERTIFICATES_REFUSED: LazyLock<IntCounter> =
    LazyLock::new(|| CERTIFICATE_READS.with_label_values(&["refused"]));

/// Counts that the certificates for clients were read again.
pub(crate) fn count_certificates_read(are_all_usable: bool) {
    if are_all_usable { &CERTIFICATES_APPLIED } else { &CERTIFICATES_REFUSED }.inc();
}

static REFUSED_CERTIFICATES: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    register::gauges(
        "roundhouse_front_tls_certificate_refused",
        "1 while the files of a certificate cannot be used, by its name in the settings.",
        &["certificate"],
    )
});

/// Shows which certificates have files that cannot be used.
pub(crate) fn show_refused_certificates<'a>(names: impl Iterator<Item = &'a str>) {
    REFUSED_CERTIFICATES.reset();
    names.for_each(|name| REFUSED_CERTIFICATES.with_label_values(&[name]).set(1));
}

static TENANT_CHILDREN: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    register::gauges(
        "roundhouse_tenant_children",
        "Server processes of a tenant on this node.",
        &["tenant"],
    )
});

/// Shows how many server processes each tenant has.
pub(crate) fn show_children(labels: &TenantLabels, budget: &Budget) {
    let shares = budget.shares();
    let used = shares.iter().map(|share| (&**share.tenant(), share.used()));
    let sums = labels.sums(used);
    // The others may all have gone since the last time.
    if !sums.contains_key(OTHER_TENANTS) {
        let _ = TENANT_CHILDREN.remove_label_values(&[OTHER_TENANTS]);
    }
    for (label, used) in sums {
        TENANT_CHILDREN.with_label_values(&[label]).set(used as i64);
    }
}

/// Sets the metrics that do not change, and shows the others before they have counted anything.
pub(crate) fn show() {
    LazyLock::force(&RELOADS_APPLIED);
    LazyLock::force(&RELOADS_REFUSED);
    LazyLock::force(&CERTIFICATES_APPLIED);
    LazyLock::force(&CERTIFICATES_REFUSED);
    LazyLock::force(&REFUSED_CERTIFICATES);
    BUILD.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use budget::ShareLimits;
    use prometheus::core::Collector as _;

    use super::*;

    #[test]
    fn the_servers_of_other_tenants_are_shown_only_while_there_are_such_tenants() {
        let limits = ShareLimits { min: 0, max: 2 };
        let budget = Budget::new(2, [(Arc::from("own"), limits)]);
        let labels = TenantLabels::new([Arc::from("own")], 1);
        let shown = || {
            show_children(&labels, &budget);
            TENANT_CHILDREN.collect().iter().map(|family| family.get_metric().len()).sum::<usize>()
        };
        budget.name(budget.unnamed_share("other"));
        assert_eq!(shown(), 2);
        budget.remove("other");
        assert_eq!(shown(), 1);
    }
}
