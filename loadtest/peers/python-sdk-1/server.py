"""Two tools on the Python SDK 1.x, over Streamable HTTP with sessions."""

import sys
from asyncio import sleep

import uvicorn
from mcp.server.fastmcp import Context, FastMCP

# The default maximum is 10,000 sessions; a measurement holds more.
mcp = FastMCP("echo", log_level="WARNING", max_sessions=None)


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
    mcp.streamable_http_app(),
    host="127.0.0.1",
    port=int(sys.argv[1]),
    workers=1,
    access_log=False,
    log_level="warning",
)
