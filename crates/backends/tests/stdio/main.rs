//! Servers that are programs: how they are spoken to, and that nothing of them stays.

mod orphans;
mod stage;
mod stopping;
mod talking;
