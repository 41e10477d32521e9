//! Which server has a resource. URIs have no prefix: they are routed by their origin.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use protocol::Listed;

use crate::child::Child;
use crate::list::List;
use crate::member::{Kind, Members};
use crate::template;

/// Most resources whose origin is known from links in results; the oldest are forgotten.
const LINKS_MAX: usize = 1_000;
/// Most bytes of these URIs; the oldest are forgotten.
const LINKS_BYTES_MAX: usize = 256 << 10;
/// Longest URI that is kept.
const URI_BYTES_MAX: usize = 2 << 10;

/// How long after a new link the links are saved for the next owner, in milliseconds: with others that come meanwhile.
const SAVED_AFTER_MS: u64 = 1_000;

/// Resources to which results of tools had links, and the servers of these results.
#[derive(Default)]
pub(crate) struct Origins {
    servers: HashMap<Arc<str>, usize>,
    order: VecDeque<Arc<str>>,
    bytes: usize,
    /// When they are saved, if some are new since the last time.
    save_at: Option<u64>,
}

impl Origins {
    /// A result of this server has a link to this resource. The first server keeps it.
    pub(crate) fn note(&mut self, now: u64, uri: String, child: usize) {
        if self.add(uri, child) {
            self.save_at.get_or_insert(now.saturating_add(SAVED_AFTER_MS));
        }
    }

    /// Adds a link. Returns whether it is new.
    pub(crate) fn add(&mut self, uri: String, child: usize) -> bool {
        if uri.len() > URI_BYTES_MAX || self.servers.contains_key(uri.as_str()) {
            return false;
        }
        self.bytes += uri.len();
        while (self.order.len() >= LINKS_MAX || self.bytes > LINKS_BYTES_MAX)
            && let Some(oldest) = self.order.pop_front()
        {
            self.bytes -= oldest.len();
            self.servers.remove(&oldest);
        }
        let uri: Arc<str> = uri.into();
        self.order.push_back(Arc::clone(&uri));
        self.servers.insert(uri, child);
        true
    }

    /// The newest first.
    pub(crate) fn newest(&self) -> impl Iterator<Item = (usize, &str)> {
        let newest = self.order.iter().rev();
        newest.filter_map(|uri| Some((*self.servers.get(uri)?, &**uri)))
    }

    /// When they are to be saved.
    pub(crate) fn save_at(&self) -> Option<u64> {
        self.save_at
    }

    /// Whether they are to be saved now.
    pub(crate) fn take_due(&mut self, now: u64) -> bool {
        self.save_at.take_if(|at| *at <= now).is_some()
    }

    /// The memory of the URIs.
    pub(crate) fn bytes(&self) -> usize {
        const OF_EACH: usize = 2 * size_of::<Arc<str>>() + size_of::<usize>();
        self.bytes + self.order.len() * OF_EACH
    }
}

/// Where a resource is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Child(usize),
    None,
}

/// The server that has a resource, or the template of a resource: the first that lists it, names it as a
/// user interface, or has linked to it; else the one with the most specific template that it fits; else the
/// only one that has resources, as far as is known. `lists` are read as far as possible.
pub(crate) fn place(members: &Members, children: &[Child], links: &Origins, uri: &str) -> Place {
    let allows = |child: &usize| members.get(*child).allows(Kind::Resource, uri);
    if children.len() == 1 {
        return if allows(&0) { Place::Child(0) } else { Place::None };
    }
    let lists = |listed: Listed| {
        let lists = children.iter().enumerate();
        lists.filter_map(move |(at, child)| Some((at, child.list(listed)?)))
    };
    let exact = |listed: Listed| {
        let has = |(at, list): (usize, &std::sync::Arc<List>)| list.position(uri).map(|_| at);
        lists(listed).find_map(has)
    };
    let interface = || {
        let names = |list: &List| list.interfaces.iter().any(|interface| **interface == *uri);
        lists(Listed::Tool).find(|(_, list)| names(list)).map(|(at, _)| at)
    };
    let fitting = || {
        let all = lists(Listed::Template).flat_map(|(at, list)| {
            let fit = |entry: &crate::list::Entry| template::fit(&entry.name, uri);
            list.entries.iter().filter_map(fit).map(move |literal| (literal, at))
        });
        // Of equally specific ones the first.
        all.max_by_key(|(literal, at)| (*literal, std::cmp::Reverse(*at))).map(|(_, at)| at)
    };
    let only = || {
        // Also one that is not available now: what is meant for it is for no other server.
        let has = |child: &Child| child.capabilities.lists(Listed::Resource);
        let mut with = children.iter().enumerate().filter(|(_, child)| has(child));
        let first = with.next().map(|(at, _)| at);
        first.filter(|_| with.next().is_none())
    };
    let found = exact(Listed::Resource)
        .or_else(|| exact(Listed::Template))
        .or_else(interface)
        .or_else(|| links.servers.get(uri).copied())
        .or_else(fitting)
        .or_else(only);
    found.filter(allows).map_or(Place::None, Place::Child)
}

/// The resources that are not offered because a server before theirs lists the same URI.
pub(crate) fn hidden<'a>(
    listed: Listed,
    lists: &[(&str, Option<&'a List>)],
) -> HashSet<(usize, &'a str)> {
    let mut hidden = HashSet::new();
    // Names of tools and prompts have prefixes.
    if !matches!(listed, Listed::Resource | Listed::Template) {
        return hidden;
    }
    let mut first = HashSet::new();
    for (child, (_, list)) in lists.iter().enumerate() {
        let entries = list.map(|list| &list.entries[..]).unwrap_or_default();
        for entry in entries {
            if !first.insert(&*entry.name) {
                hidden.insert((child, &*entry.name));
            }
        }
    }
    hidden
}
