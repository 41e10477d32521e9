//! The list of tenants, as JSON: the figures of all nodes, and the settings of the node that is asked, or of
//! another one for a tenant that only others have.

use std::collections::BTreeMap;
use std::sync::Arc;

use actors::{Figure, ShownSettings, TenantFigures};
use serde_json::{Map, Value, json};
use tenants::Tenant;

use crate::admin_api::named;

/// The figures of all nodes that could be asked, by node.
pub(crate) type FiguresByNode = Vec<(Arc<str>, Vec<TenantFigures>)>;

/// The tenants to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TenantsQuery {
    /// Those behind this name.
    pub(crate) after: Option<String>,
    /// At most so many; `None`: all. Their number is that of the settings.
    pub(crate) limit: Option<usize>,
}

/// The tenants in the order of their names: those of the settings of this node, and those of which
/// another node has something. Then the name of the last one, if further ones follow.
pub(crate) fn tenants(
    settings: &[Arc<Tenant>],
    nodes: FiguresByNode,
    query: &TenantsQuery,
) -> (Vec<Value>, Option<Arc<str>>) {
    let known = settings.iter().map(|tenant| (Arc::clone(&tenant.name), Some(tenant)));
    let mut all: BTreeMap<Arc<str>, _> = known.map(|(name, one)| (name, (one, vec![]))).collect();
    for (node, tenants) in nodes {
        for figures in tenants {
            let (_, nodes) = all.entry(Arc::clone(&figures.tenant)).or_insert((None, vec![]));
            nodes.push((Arc::clone(&node), figures));
        }
    }
    if let Some(after) = &query.after {
        all.retain(|name, _| **name > **after);
    }
    let limit = query.limit.unwrap_or(all.len());
    let next = all.keys().nth(limit.saturating_sub(1)).filter(|_| all.len() > limit).cloned();
    let page = all.into_iter().take(limit);
    (page.map(|(name, (settings, nodes))| tenant(&name, settings, &nodes)).collect(), next)
}

fn tenant(
    name: &str,
    settings: Option<&Arc<Tenant>>,
    nodes: &[(Arc<str>, TenantFigures)],
) -> Value {
    let mut tenant = Map::new();
    tenant.insert("name".into(), name.into());
    let of_others = || nodes.iter().find_map(|(_, figures)| figures.settings.clone());
    let settings = settings.map(|tenant| ShownSettings::of(tenant)).or_else(of_others);
    let settings = settings.as_ref();
    tenant.insert("auth".into(), json!(settings.map(|settings| &settings.auth)));
    tenant.insert("keys".into(), json!(settings.and_then(|settings| settings.keys)));
    tenant.insert("hosts".into(), json!(settings.map(|settings| &settings.hosts)));
    tenant.insert("leaving".into(), json!(settings.map(|settings| settings.is_leaving)));
    let sum = |figure: fn(&TenantFigures) -> Figure| {
        nodes.iter().map(|(_, figures)| figure(figures)).fold(Figure::default(), Figure::plus)
    };
    let all = TenantFigures {
        tenant: name.into(),
        sessions: sum(|figures| figures.sessions),
        session_bytes: sum(|figures| figures.session_bytes),
        stored_bytes: nodes.iter().map(|(_, figures)| figures.stored_bytes).sum(),
        children: sum(|figures| figures.children),
        settings: None,
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
        let keyed = ShownSettings {
            auth: vec!["keys".into()],
            keys: Some(2),
            hosts: vec!["there.example".into()],
            is_leaving: false,
        };
        let there = TenantFigures { settings: Some(keyed), ..figures("there", 1, Some(9)) };
        let nodes: FiguresByNode = vec![
            ("one".into(), vec![figures("acme", 1, Some(5))]),
            ("two".into(), vec![figures("acme", 2, Some(7)), figures("gone", 3, None), there]),
        ];
        let page = |after: Option<&str>, limit| {
            let query = TenantsQuery { after: after.map(str::to_owned), limit };
            let (page, next) = tenants(&[Arc::clone(&acme)], nodes.clone(), &query);
            let names = page.iter().map(|tenant| tenant["name"].as_str().unwrap().to_owned());
            (names.collect::<Vec<_>>(), next)
        };
        assert_eq!(page(None, Some(2)), (vec!["acme".into(), "gone".into()], Some("gone".into())));
        assert_eq!(page(Some("gone"), Some(2)), (vec!["there".into()], None));
        assert_eq!(page(None, Some(3)).1, None);
        let (listed, _) = tenants(&[Arc::clone(&acme)], nodes.clone(), &TenantsQuery::default());
        let [acme, gone, there] = &*listed else { panic!("{listed:?}") };
        assert_eq!((&there["auth"], &there["keys"]), (&json!(["keys"]), &json!(2)));
        assert_eq!(there["hosts"], json!(["there.example"]));
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
