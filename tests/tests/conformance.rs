//! The public conformance suite, against the fixture in process and as a program.

use anyhow::Result;
use tests::conformance::{BEFORE, FROZEN, OF_2025_03_26, OF_2025_06_18, OF_2025_11_25};
use tests::{Node, Setup};

#[tokio::test]
async fn the_fixture_in_process_conforms_to_2025_03_26() -> Result<()> {
    OF_2025_03_26.passes(&Node::start(&Setup::demo())?.demo()).await
}

#[tokio::test]
async fn the_fixture_in_process_conforms_to_2025_06_18() -> Result<()> {
    OF_2025_06_18.passes(&Node::start(&Setup::demo())?.demo()).await
}

#[tokio::test]
async fn the_fixture_in_process_conforms_to_2025_11_25() -> Result<()> {
    OF_2025_11_25.passes(&Node::start(&Setup::demo())?.demo()).await
}

#[tokio::test]
async fn the_fixture_in_process_meets_the_frozen_requirements_of_2025_11_25() -> Result<()> {
    FROZEN.passes(&Node::start(&Setup::demo())?.demo()).await
}

#[tokio::test]
async fn the_fixture_in_process_conforms_to_the_suite_before() -> Result<()> {
    BEFORE.passes(&Node::start(&Setup::demo())?.demo()).await
}

#[tokio::test]
async fn the_fixture_as_a_program_conforms_to_2025_03_26() -> Result<()> {
    OF_2025_03_26.passes(&Node::start(&Setup::fixture())?.demo()).await
}

#[tokio::test]
async fn the_fixture_as_a_program_conforms_to_2025_06_18() -> Result<()> {
    OF_2025_06_18.passes(&Node::start(&Setup::fixture())?.demo()).await
}

#[tokio::test]
async fn the_fixture_as_a_program_conforms_to_2025_11_25() -> Result<()> {
    OF_2025_11_25.passes(&Node::start(&Setup::fixture())?.demo()).await
}
