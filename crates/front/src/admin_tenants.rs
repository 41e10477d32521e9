//! The list of tenants, as JSON: the settings of the node that is asked, and the figures of all nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use actors::{Figure, TenantFigures};
use serde_json::{Map, Value, json};
use tenants::{Access, Tenant};

use crate::admin_api::named;

/// The figures of all nodes that could be asked, by node.
pub(crate) type FiguresByNode = Vec<(Arc<str>, Vec<TenantFigures>)>;

/// The tenants in the order of their names: those of the settings of this node, and those of which
/// another node has something.
pub(crate) fn tenants(settings: &[Arc<Tenant>], nodes: FiguresByNode) -> Vec<Value> {
    let known = settings.iter().map(|tenant| (Arc::clone(&tenant.name), Some(tenant)));
    let mut all: BTreeMap<Arc<str>, _> = known.map(|(name, one)| (name, (one, vec![]))).collect();
    for (node, tenants) in nodes {
        for figures in tenants {
            let (_, nodes) = all.entry(Arc::clone(&figures.tenant)).or_insert((None, vec![]));
            nodes.push((Arc::clone(&node), figures));
        }
    }
    all.into_iter().map(|(name, (settings, nodes))| tenant(&name, settings, &nodes)).collect()
}

fn tenant(
    name: &str,
    settings: Option<&Arc<Tenant>>,
    nodes: &[(Arc<str>, TenantFigures)],
) -> Value {
    let mut tenant = Map::new();
    tenant.insert("name".into(), name.into());
    let (auth, keys) = settings.map(|tenant| credentials(tenant)).unzip();
    tenant.insert("auth".into(), json!(auth));
    tenant.insert("keys".into(), json!(keys.flatten()));
    tenant.insert("hosts".into(), json!(settings.map(|tenant| &tenant.hosts)));
    tenant.insert("leaving".into(), json!(settings.map(|tenant| tenant.is_leaving)));
    let sum = |figure: fn(&TenantFigures) -> Figure| {
        nodes.iter().map(|(_, figures)| figure(figures)).fold(Figure::default(), Figure::plus)
    };
    let all = TenantFigures {
        tenant: name.into(),
        sessions: sum(|figures| figures.sessions),
        session_bytes: sum(|figures| figures.session_bytes),
        stored_bytes: nodes.iter().map(|(_, figures)| figures.stored_bytes).sum(),
        children: sum(|figures| figures.children),
    };
    tenant.extend(amounts(&all));
    let nodes = nodes.iter().map(|(node, figures)| {
        let mut of_node = amounts(figures);
        of_node.insert("node".into(), named(node).into());
        Value::Object(of_node)
    });
    tenant.insert("nodes".into(), nodes.collect());
    Value::Object(tenant)
}

fn credentials(tenant: &Tenant) -> (Vec<&'static str>, Option<usize>) {
    match &tenant.access {
        Access::Open => (vec!["open"], None),
        Access::Authenticated(credentials) => {
            let keys = credentials.keys.as_ref().map(|_| "keys");
            let oauth = credentials.oauth.as_ref().map(|_| "oauth");
            let count = credentials.keys.as_ref().map(|keys| keys.count());
            (keys.into_iter().chain(oauth).collect(), count)
        }
    }
}

fn amounts(figures: &TenantFigures) -> Map<String, Value> {
    let TenantFigures { sessions, session_bytes, stored_bytes, children, .. } = figures;
    let amounts = [
        ("sessions", json!(sessions.used)),
        ("session_bytes", json!(session_bytes.used)),
        ("stored_bytes", json!(stored_bytes)),
        ("children", json!(children.used)),
        (
            "limits",
            json!({
                "sessions_max": sessions.max,
                "session_bytes_max": session_bytes.max,
                "children_max": children.max,
            }),
        ),
    ];
    amounts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_the_sums_of_all_nodes_and_one_that_only_another_node_knows_is_listed() {
        let settings = tenants::Settings { auth: Some("open".into()), ..Default::default() };
        let acme = Arc::new(Tenant::new("acme", &settings).unwrap());
        let figures = |tenant: &str, used, max| TenantFigures {
            tenant: tenant.into(),
            sessions: Figure { used, max },
            stored_bytes: 10 * used,
            ..TenantFigures::default()
        };
        let nodes = vec![
            ("one".into(), vec![figures("acme", 1, Some(5))]),
            ("two".into(), vec![figures("acme", 2, Some(7)), figures("gone", 3, None)]),
        ];
        let listed = tenants(&[acme], nodes);
        let [acme, gone] = &*listed else { panic!("{listed:?}") };
        assert_eq!((&acme["sessions"], &acme["stored_bytes"]), (&json!(3), &json!(30)));
        assert_eq!(acme["limits"]["sessions_max"], 12);
        assert_eq!(acme["auth"], json!(["open"]));
        assert_eq!(acme["nodes"][1]["node"], "two");
        assert_eq!(acme["nodes"][1]["limits"]["sessions_max"], 7);
        assert_eq!((&gone["name"], &gone["sessions"]), (&json!("gone"), &json!(3)));
        assert!(gone["auth"].is_null() && gone["limits"]["sessions_max"].is_null());
        assert_eq!(gone["nodes"].as_array().map(Vec::len), Some(1));
    }
}
