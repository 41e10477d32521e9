"""Two tools on FastMCP, over Streamable HTTP with sessions."""

import sys
from asyncio import sleep

import uvicorn
from fastmcp import Context, FastMCP

mcp = FastMCP("echo")


@mcp.tool(output_schema=None)
async def echo(message: str, number: int = 0, list: list[int] = []) -> str:
    return message


@mcp.tool(output_schema=None)
async def count(n: int, interval_ms: int, ctx: Context) -> str:
    for progress in range(1, n + 1):
        if progress > 1 and interval_ms:
            await sleep(interval_ms / 1000)
        await ctx.report_progress(progress, n)
    return f"counted to {n}"


uvicorn.run(
    mcp.http_app(path="/mcp"),
    host="127.0.0.1",
    port=int(sys.argv[1]),
    workers=1,
    access_log=False,
    log_level="warning",
)
