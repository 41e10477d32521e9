//! Whole nodes in one process, with a store between them.

mod links;
mod support;
