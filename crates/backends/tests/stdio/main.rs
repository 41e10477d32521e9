//! Tests of servers that are programs: their messages, their end, and their descendants.

mod attacks;
mod cgroups;
mod kernel_files;
mod namespaces;
mod orphans;
mod protections;
mod shares;
mod stage;
mod starting;
mod stopping;
mod talking;
mod terminal;
