"""Two tools on the Python SDK 2.x, over Streamable HTTP with sessions."""

import sys
from asyncio import sleep

import uvicorn
from mcp.server.mcpserver import Context, MCPServer

mcp = MCPServer("echo", log_level="WARNING")


@mcp.tool(structured_output=False)
async def echo(message: str, number: int = 0, list: list[int] = []) -> str:
    return message


@mcp.tool(structured_output=False)
async def count(n: int, interval_ms: int, ctx: Context) -> str:
    for progress in range(1, n + 1):
        if progress > 1 and interval_ms:
            await sleep(interval_ms / 1000)
        await ctx.report_progress(progress, n)
    return f"counted to {n}"


uvicorn.run(
    # The default maximum is 10,000 sessions; a measurement holds more.
    mcp.streamable_http_app(max_sessions=None),
    host="127.0.0.1",
    port=int(sys.argv[1]),
    workers=1,
    access_log=False,
    log_level="warning",
)
