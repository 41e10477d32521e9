//! The list of one kind of one backend, as the catalog offers it, and how it is read.

use std::collections::{BTreeSet, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use budget::Share;
use protocol::{ListPage, Listed};

use crate::LeftOut;
use crate::member::Members;
use crate::pins::{Difference, Pinned};

/// Most entries of one list of one backend; further ones are left out.
pub(crate) const ENTRIES_MAX: usize = 2_000;
/// Most bytes of one list of one backend; further entries are left out.
pub(crate) const LIST_BYTES_MAX: usize = 2 << 20;
/// Most pages of one list that are read of a server; what is on later ones is left out.
pub(crate) const PAGES_MAX: u32 = 64;
/// Most left out entries that one list reports.
const REPORTED_MAX: usize = 20;

/// A list of one backend, with the names of the catalog.
#[derive(Default)]
pub(crate) struct List {
    pub(crate) entries: Vec<Entry>,
    /// The URIs of user interfaces that its tools name.
    pub(crate) interfaces: Vec<Box<str>>,
    /// The server's own names of entries that are not offered: their definitions are not the approved ones.
    pub(crate) refused: BTreeSet<Box<str>>,
    pub(crate) bytes: usize,
    /// What is charged to the tenant while the list exists.
    charge: OnceLock<Charge>,
}

/// One entry of a list.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    /// Its name in the catalog, its URI or its template.
    pub(crate) name: Box<str>,
    /// The JSON text, with that name.
    pub(crate) raw: Box<str>,
}

/// Bytes that are charged to a tenant.
struct Charge {
    share: Share,
    bytes: usize,
}

impl List {
    /// Charges the bytes of the list to the share of its tenant, until the list is dropped.
    pub(crate) fn charge_to(&self, share: &Share) {
        let bytes = self.memory();
        self.charge.get_or_init(|| {
            share.charge(bytes);
            Charge { share: share.clone(), bytes }
        });
    }

    fn memory(&self) -> usize {
        let names = self.entries.iter().map(|entry| entry.name.len() + size_of::<Entry>());
        let interfaces = self.interfaces.iter().map(|uri| uri.len() + size_of::<Box<str>>());
        let refused = self.refused.iter().map(|name| name.len() + size_of::<Box<str>>());
        let texts = names.sum::<usize>() + interfaces.sum::<usize>() + refused.sum::<usize>();
        self.bytes + texts + size_of::<Self>()
    }

    /// The position of the entry with this name.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| &*entry.name == name)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.share.release(self.bytes);
    }
}

impl PartialEq for List {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
            && self.interfaces == other.interfaces
            && self.refused == other.refused
    }
}

impl Hash for List {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.entries.hash(hasher);
    }
}

/// A list that is being read, page by page.
pub(crate) struct Reading {
    list: List,
    names: HashSet<Box<str>>,
    names_bytes: usize,
    pages: u32,
    /// The entries that are not offered, at most [`REPORTED_MAX`] of them.
    pub(crate) left_out: Vec<(Box<str>, LeftOut)>,
    /// The definitions that are not the approved ones, at most [`ENTRIES_MAX`] of them.
    pub(crate) differences: Vec<Difference>,
    /// The number of the request for the next page.
    pub(crate) request: u64,
    /// When the server has to have sent all pages.
    pub(crate) until: u64,
    /// The server has reported a change since the reading began.
    pub(crate) is_outdated: bool,
    /// The pins have changed since the reading began: some entries were compared with former ones.
    pub(crate) has_former_pins: bool,
}

impl Reading {
    pub(crate) fn new(request: u64, until: u64) -> Self {
        let (list, names, names_bytes) = (List::default(), HashSet::new(), 0);
        let (left_out, differences) = (Vec::new(), Vec::new());
        Self {
            list,
            names,
            names_bytes,
            pages: 0,
            left_out,
            differences,
            request,
            until,
            is_outdated: false,
            has_former_pins: false,
        }
    }

    /// Adds a page. Returns the cursor of the next one if that is to be read; `Err` if the result is no
    /// such list. `bytes_left`: what the lists of all backends may still have.
    pub(crate) fn add_page(
        &mut self,
        members: &Members,
        pinned: &Pinned,
        child: usize,
        listed: Listed,
        result: &[u8],
        bytes_left: usize,
    ) -> Result<Option<String>, ()> {
        let page = ListPage::read(result, listed).ok_or(())?;
        self.pages += 1;
        let bytes_max = LIST_BYTES_MAX.min(bytes_left);
        let mut is_full = false;
        for entry in &page.entries {
            let Some(name) = &entry.name else {
                self.leave_out("", LeftOut::Unnamed);
                continue;
            };
            let exposed = match members.exposed(child, listed, name) {
                Ok(exposed) => exposed,
                Err(why) => {
                    self.leave_out(name, why);
                    continue;
                }
            };
            if self.names.contains(&*exposed) || self.list.refused.contains(&**name) {
                self.leave_out(name, LeftOut::Collides);
                continue;
            }
            if self.list.entries.len() + self.list.refused.len() >= ENTRIES_MAX {
                self.leave_out(name, LeftOut::TooMany);
                is_full = true;
                continue;
            }
            if let Some(difference) = pinned.difference(listed, name, entry.raw) {
                let is_refused = difference.is_refused;
                if self.differences.len() < ENTRIES_MAX {
                    self.differences.push(difference);
                }
                if is_refused {
                    self.list.refused.insert(name.as_ref().into());
                    continue;
                }
            }
            let raw = match exposed == **name {
                true => entry.raw.to_owned(),
                false => entry.with_name(listed, &exposed).unwrap_or_default(),
            };
            if self.list.bytes + raw.len() > bytes_max {
                self.leave_out(name, LeftOut::TooMany);
                is_full = true;
                continue;
            }
            self.list.bytes += raw.len();
            if listed == Listed::Tool {
                self.list.interfaces.extend(entry.interface_uri().map(Into::into));
            }
            let name: Box<str> = exposed.into();
            // The list has it, too.
            self.names_bytes += 2 * (name.len() + size_of::<Entry>());
            self.names.insert(name.clone());
            self.list.entries.push(Entry { name, raw: raw.into() });
        }
        let is_last = self.pages >= PAGES_MAX || is_full;
        if is_last && page.next_cursor.is_some() {
            self.leave_out("", LeftOut::TooMany);
        }
        Ok(page.next_cursor.filter(|_| !is_last))
    }

    fn leave_out(&mut self, name: &str, why: LeftOut) {
        if self.left_out.len() < REPORTED_MAX {
            let name: String = name.chars().take(100).collect();
            self.left_out.push((name.into(), why));
        }
    }

    /// The list, once all pages are read.
    pub(crate) fn into_list(self) -> List {
        let mut list = self.list;
        list.entries.shrink_to_fit();
        list
    }

    /// The memory of what is read so far.
    pub(crate) fn memory(&self) -> usize {
        self.list.bytes + self.names_bytes
    }

    /// The bytes that are read so far.
    pub(crate) fn bytes(&self) -> usize {
        self.list.bytes
    }
}
