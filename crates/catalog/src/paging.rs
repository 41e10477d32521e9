//! The pages of a merged list. A cursor names a position, so each node can continue from it, also
//! after the former owner was lost or a list has changed.

use protocol::Listed;

use crate::list::List;

/// Most bytes of the entries of one page; a page has at least one entry.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Most entries of one page. Many clients read only the first page.
const PAGE_ENTRIES_MAX: usize = 2_000;
/// What a cursor begins with.
const MARK: &str = "c1-";
/// The length of a number in a cursor.
const DIGITS: usize = 16;

/// A position in a merged list: behind an entry of one backend. The entry is found by its name if the list
/// has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The hash of the backend's name.
    backend: u64,
    /// The hash of the name of the last entry.
    entry: u64,
    /// Its position.
    at: u32,
}

impl Cursor {
    /// Reads a cursor; `None` if it is not one of this module's.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(MARK)?;
        if !rest.is_ascii() || rest.len() != 2 * DIGITS + 8 {
            return None;
        }
        let (backend, rest) = rest.split_at(DIGITS);
        let (entry, at) = rest.split_at(DIGITS);
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(Self {
            backend: number(backend)?,
            entry: number(entry)?,
            at: u32::from_str_radix(at, 16).ok()?,
        })
    }

    fn text(self) -> String {
        format!("{MARK}{:016x}{:016x}{:08x}", self.backend, self.entry, self.at)
    }

    /// The position of the first entry after the cursor, in a list of its backend. `None` if neither the
    /// entry nor its position is there.
    fn next_in(self, list: &List) -> Option<usize> {
        let at = self.at as usize;
        if list.entries.get(at).is_some_and(|entry| hash(&entry.name) == self.entry) {
            return Some(at + 1);
        }
        let moved = list.entries.iter().position(|entry| hash(&entry.name) == self.entry);
        moved.map(|at| at + 1).or_else(|| (at <= list.entries.len()).then_some(at))
    }
}

/// One page of a merged list: the result of a request for it. `lists` are those of the backends, each with
/// the name of its backend. `None` if the cursor names a backend that is not there.
pub(crate) fn page(
    listed: Listed,
    lists: &[(&str, Option<&List>)],
    cursor: Option<Cursor>,
    mut is_offered: impl FnMut(usize, &str) -> bool,
) -> Option<Vec<u8>> {
    let (mut from, mut at) = (0, 0);
    if let Some(cursor) = cursor {
        from = lists.iter().position(|(name, _)| hash(name) == cursor.backend)?;
        // The list of a backend that is not available any more ends.
        at = lists[from].1.map_or(Some(0), |list| cursor.next_in(list))?;
    }
    let (mut entries, mut bytes, mut next) = (Vec::new(), 0, None);
    'all: for (backend, (name, list)) in lists.iter().enumerate().skip(from) {
        let list = list.map(|list| &list.entries[..]).unwrap_or_default();
        for (position, entry) in list.iter().enumerate().skip(at) {
            let is_full =
                bytes + entry.raw.len() > PAGE_BYTES_MAX || entries.len() >= PAGE_ENTRIES_MAX;
            if is_full && !entries.is_empty() {
                break 'all;
            }
            next = Some((name, entry, position));
            if is_offered(backend, &entry.name) {
                bytes += entry.raw.len();
                entries.push(&*entry.raw);
            }
        }
        at = 0;
        if backend + 1 == lists.len() {
            next = None;
        }
    }
    let next = next.map(|(name, entry, at)| {
        let at = u32::try_from(at).unwrap_or(u32::MAX);
        Cursor { backend: hash(name), entry: hash(&entry.name), at }.text()
    });
    Some(listed.result(entries, next.as_deref()))
}

/// FNV-1a: the same in each version of the program, other than that of the standard library.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::Entry;

    fn list(names: &[&str], bytes: usize) -> List {
        let entry = |name: &&str| Entry {
            name: (*name).into(),
            raw: format!("\"{}{name}\"", " ".repeat(bytes)).into(),
        };
        let mut list = List::default();
        list.entries = names.iter().map(entry).collect();
        list
    }

    /// The names of a page, and its cursor.
    fn read(page: &[u8]) -> (Vec<String>, Option<String>) {
        let page: serde_json::Value = serde_json::from_slice(page).unwrap();
        let names = page["tools"].as_array().unwrap().iter();
        let names = names.map(|name| name.as_str().unwrap().trim().to_owned()).collect();
        (names, page["nextCursor"].as_str().map(str::to_owned))
    }

    fn next(lists: &[(&str, Option<&List>)], cursor: &str) -> (Vec<String>, Option<String>) {
        read(&page(Listed::Tool, lists, Some(Cursor::parse(cursor).unwrap()), |_, _| true).unwrap())
    }

    #[test]
    fn pages_together_are_the_whole_list() {
        let (one, other) = (list(&["a", "b", "c"], 500_000), list(&["d", "e"], 500_000));
        let lists = [("one", Some(&one)), ("none", None), ("other", Some(&other))];
        let mut all = Vec::new();
        let (mut names, mut cursor) = read(&page(Listed::Tool, &lists, None, |_, _| true).unwrap());
        loop {
            assert!(names.len() <= 2);
            all.append(&mut names);
            let Some(text) = cursor else { break };
            (names, cursor) = next(&lists, &text);
        }
        assert_eq!(all, ["a", "b", "c", "d", "e"]);
    }

    #[test]
    fn a_list_that_fits_has_no_further_page() {
        let (one, other) = (list(&["a"], 1), list(&["b"], 1));
        let lists = [("one", Some(&one)), ("other", Some(&other)), ("none", None)];
        let (names, cursor) = read(&page(Listed::Tool, &lists, None, |_, _| true).unwrap());
        assert_eq!((names.len(), cursor), (2, None));
    }

    #[test]
    fn a_cursor_finds_its_place_in_a_list_that_has_changed() {
        let before = list(&["a", "b", "c", "d"], 500_000);
        let (_, cursor) =
            read(&page(Listed::Tool, &[("one", Some(&before))], None, |_, _| true).unwrap());
        let cursor = cursor.unwrap();
        for (after, expected) in [
            (list(&["x", "a", "b", "c"], 1), &["c"][..]),
            (list(&["b", "c"], 1), &["c"]),
            (list(&["a", "y", "z"], 1), &["y", "z"]),
        ] {
            assert_eq!(next(&[("one", Some(&after))], &cursor).0, expected);
        }
        assert_eq!(next(&[("one", None)], &cursor).0, [""; 0]);
        let of_other = page(Listed::Tool, &[("two", None)], Cursor::parse(&cursor), |_, _| true);
        assert!(of_other.is_none());
    }

    #[test]
    fn nothing_else_is_a_cursor() {
        for text in ["", "c1-", "2", "c1-ü", &format!("c1-{}", "g".repeat(40)), &"c".repeat(2_000)]
        {
            assert_eq!(Cursor::parse(text), None);
        }
    }
}
