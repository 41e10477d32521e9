//! Tests of servers that are programs: their messages, their end, and their descendants.

mod orphans;
mod stage;
mod stopping;
mod talking;
