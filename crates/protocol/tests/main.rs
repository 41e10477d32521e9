//! Tests of parsers and encoders.
//!
//! The integration tests of this crate are one program, so that it is compiled and linked once.

mod envelope;
mod envelope_properties;
mod named_properties;
mod payload_properties;
mod sse;
