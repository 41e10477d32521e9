//! Checks how the modules of each crate depend on each other, and that no type has `impl` blocks
//! in many files. Reads the sources with a parser, which ignores comments, strings and tests.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemUse, UseTree, Visibility};

use super::{Source, sources};

/// The maximum number of modules in one cycle of imports.
const CYCLE_MAX: usize = 3;

/// The maximum number of files with `impl` blocks of one type. A type with more has several jobs.
const IMPL_FILES_MAX: usize = 3;

/// A module, as the path from its crate's root; empty for the root.
type Module = Vec<String>;

/// The imports and the `impl` blocks of one file of a crate.
#[derive(Default)]
struct Parsed {
    /// The full paths that it imports, from the crate's root.
    imports: BTreeSet<Vec<String>>,
    /// The names that it re-exports, each with the full path of its item.
    exports: BTreeMap<String, Vec<String>>,
    /// The types of its `impl` blocks.
    impls: BTreeSet<String>,
}

/// Reads one file, without the items behind `#[cfg(test)]`.
struct Reader<'a> {
    module: &'a Module,
    parsed: Parsed,
}

impl Reader<'_> {
    /// The full path of a path that begins with `crate`, `self` or `super`; `None` for any other.
    fn full_path(&self, path: &[String]) -> Option<Vec<String>> {
        let mut full = match path.first()?.as_str() {
            "crate" => Vec::new(),
            "self" => self.module.clone(),
            "super" => self.module[..self.module.len().checked_sub(1)?].to_vec(),
            _ => return None,
        };
        for part in &path[1..] {
            if part == "super" {
                full.pop()?;
            } else {
                full.push(part.clone());
            }
        }
        Some(full)
    }

    fn take_use(&mut self, prefix: &[String], tree: &UseTree, exported: bool) {
        let with = |name: &syn::Ident| [prefix, &[name.to_string()]].concat();
        let (path, name) = match tree {
            UseTree::Path(path) => return self.take_use(&with(&path.ident), &path.tree, exported),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.take_use(prefix, tree, exported));
                return;
            }
            UseTree::Name(name) if name.ident == "self" => (prefix.to_vec(), None),
            UseTree::Name(name) => (with(&name.ident), Some(name.ident.to_string())),
            UseTree::Rename(name) => (with(&name.ident), Some(name.rename.to_string())),
            UseTree::Glob(_) => (prefix.to_vec(), None),
        };
        let Some(path) = self.full_path(&path) else { return };
        match name {
            // A re-export of an item of the module's own children is not an import.
            Some(name) if exported => {
                self.parsed.exports.insert(name, path);
            }
            _ => {
                self.parsed.imports.insert(path);
            }
        }
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_test = |list: &syn::MetaList| list.tokens.to_string() == "test";
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && attribute.meta.require_list().is_ok_and(is_test))
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let exported = !matches!(item.vis, Visibility::Inherited);
        self.take_use(&[], &item.tree, exported);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let path_of_names: Vec<_> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if path_of_names.len() > 1
            && let Some(full) = self.full_path(&path_of_names)
        {
            self.parsed.imports.insert(full);
        }
        visit::visit_path(self, path);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        // An `impl` of a trait may be in the file that does the job of the trait, so it does not
        // count.
        if let syn::Type::Path(path) = &*item.self_ty
            && item.trait_.is_none()
            && let Some(last) = path.path.segments.last()
        {
            self.parsed.impls.insert(last.ident.to_string());
        }
        visit::visit_item_impl(self, item);
    }
}

/// The product files of each crate, by module.
fn crates(sources: &[Source]) -> Result<BTreeMap<String, BTreeMap<Module, Parsed>>> {
    let mut crates: BTreeMap<String, BTreeMap<Module, Parsed>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_for_tests()) {
        let Some((package, file)) = source
            .path
            .strip_prefix("crates/")
            .and_then(|path| path.split_once('/'))
            .and_then(|(package, path)| Some((package, path.strip_prefix("src/")?)))
        else {
            continue;
        };
        let mut module: Module =
            file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if matches!(module.last().map(String::as_str), Some("lib" | "main" | "mod")) {
            module.pop();
        }
        let file = syn::parse_file(&source.text).with_context(|| source.path.clone())?;
        let mut reader = Reader { module: &module, parsed: Parsed::default() };
        reader.visit_file(&file);
        let parsed = reader.parsed;
        crates.entry(package.to_owned()).or_default().insert(module, parsed);
    }
    Ok(crates)
}

/// The module that defines the item of a full path, after all re-exports.
fn holder(files: &BTreeMap<Module, Parsed>, path: &[String], depth: usize) -> Option<Module> {
    let length = (0..=path.len()).rev().find(|length| files.contains_key(&path[..*length]))?;
    let (module, rest) = path.split_at(length);
    let exported = rest.first().and_then(|name| files[module].exports.get(name));
    match exported {
        Some(target) if depth > 0 => holder(files, &[target, &rest[1..]].concat(), depth - 1),
        _ => Some(module.to_vec()),
    }
}

/// The modules from which each module of a crate imports.
fn arrows(files: &BTreeMap<Module, Parsed>) -> BTreeMap<Module, BTreeSet<Module>> {
    let arrows = files.iter().map(|(module, parsed)| {
        let holders = parsed.imports.iter().filter_map(|path| holder(files, path, 8));
        (module.clone(), holders.filter(|holder| holder != module).collect())
    });
    arrows.collect()
}

fn reachable(arrows: &BTreeMap<Module, BTreeSet<Module>>, from: &Module) -> BTreeSet<Module> {
    let mut seen = BTreeSet::new();
    let mut next: Vec<_> = arrows[from].iter().cloned().collect();
    while let Some(module) = next.pop() {
        if seen.insert(module.clone()) {
            next.extend(arrows[&module].iter().cloned());
        }
    }
    seen
}

/// The groups of modules that import from each other, directly or indirectly.
fn cycles(arrows: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<BTreeSet<Module>> {
    let reach: BTreeMap<_, _> =
        arrows.keys().map(|module| (module, reachable(arrows, module))).collect();
    let cycle_of = |module: &Module| {
        let back = reach[module].iter().filter(|other| reach[*other].contains(module));
        back.cloned().collect::<BTreeSet<_>>()
    };
    arrows.keys().map(cycle_of).filter(|cycle| !cycle.is_empty()).collect()
}

#[test]
fn no_crate_has_a_large_cycle_of_modules() -> Result<()> {
    let crates = crates(&sources()?)?;
    let mut found = Vec::new();
    for (package, files) in &crates {
        for cycle in cycles(&arrows(files)).into_iter().filter(|cycle| cycle.len() > CYCLE_MAX) {
            let names: Vec<_> = cycle.iter().map(|module| module.join("::")).collect();
            found.push(format!("{package}: {}", names.join(", ")));
        }
    }
    ensure!(found.is_empty(), "these modules import from each other:\n{}", found.join("\n"));
    Ok(())
}

#[test]
fn no_type_is_spread_over_many_files() -> Result<()> {
    let crates = crates(&sources()?)?;
    let mut found = Vec::new();
    for (package, files) in &crates {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let names = files.values().flat_map(|parsed| &parsed.impls);
        names.for_each(|name| *counts.entry(name).or_default() += 1);
        let many = counts.into_iter().filter(|(_, files)| *files > IMPL_FILES_MAX);
        found.extend(many.map(|(name, files)| format!("{package}: {name} in {files} files")));
    }
    ensure!(found.is_empty(), "give each job a type of its own:\n{}", found.join("\n"));
    Ok(())
}

#[test]
fn imports_are_followed_to_the_module_that_holds_what_they_name() -> Result<()> {
    let files = [
        ("crates/x/src/lib.rs", "mod a; mod b; pub use b::Deep; pub use self::b::Other;"),
        ("crates/x/src/a.rs", "use crate::Other; use super::b::{c::Leaf as L, Deep};"),
        ("crates/x/src/b.rs", "mod c; pub(crate) use self::c::Deep; pub struct Other;"),
        ("crates/x/src/b/c.rs", "pub struct Deep; #[cfg(test)] mod tests { use crate::a::X; }"),
    ];
    let source = |(path, text): (&str, &str)| Source { path: path.into(), text: text.into() };
    let crates = crates(&files.map(source))?;
    let arrows = arrows(&crates["x"]);
    let module = |path: &str| path.split("::").map(str::to_owned).collect::<Module>();
    assert_eq!(arrows[&module("a")], [module("b"), module("b::c")].into());
    assert!(arrows[&module("b::c")].is_empty());
    assert!(cycles(&arrows).is_empty());
    Ok(())
}

#[test]
fn a_cycle_is_found_whole() {
    let module = |name: &str| vec![name.to_owned()];
    let to = |names: &[&str]| names.iter().map(|name| module(name)).collect::<BTreeSet<_>>();
    let arrows = BTreeMap::from([
        (module("a"), to(&["b"])),
        (module("b"), to(&["c", "d"])),
        (module("c"), to(&["a"])),
        (module("d"), to(&[])),
    ]);
    assert_eq!(cycles(&arrows), [to(&["a", "b", "c"])].into());
}
