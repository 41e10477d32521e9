//! The fixture MCP server: every tool, resource and prompt that the conformance suite asks for.
