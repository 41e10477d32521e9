"""FastMCP's client: `client.py URL SCENARIO`."""

import pathlib
import sys

import anyio

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import scenarios  # noqa: E402
from fastmcp import Client  # noqa: E402
from mcp import MCPError  # noqa: E402


class Kit:
    """The differences of FastMCP's client from the SDKs."""

    error = MCPError


class Session:
    """FastMCP's client with the interface of the SDKs' sessions."""

    def __init__(self, client):
        self.client = client

    async def call_tool(self, tool, arguments, progress_callback=None):
        return await self.client.call_tool_mcp(tool, arguments, progress_handler=progress_callback)


async def main(url, name):
    async with Client(url, log_handler=scenarios.log) as client:
        scenarios.saw("connected")
        await scenarios.ALL[name](Session(client), Kit)
    scenarios.saw("terminated")


anyio.run(main, *sys.argv[1:])
