//! The program, and the library for embedding: reads settings, assembles, stops in order.

pub mod settings;
