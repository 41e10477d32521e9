//! Logs, traces, the metrics registry. Knows nothing of MCP.
