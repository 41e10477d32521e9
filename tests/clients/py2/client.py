"""The Python SDK, 2.x: `client.py URL SCENARIO`. It tries the newest revision first."""

import pathlib
import sys

import anyio

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import mcp_types as types  # noqa: E402
import scenarios  # noqa: E402
import sign_in  # noqa: E402
from mcp import Client, MCPError  # noqa: E402
from mcp.client.auth import OAuthClientProvider  # noqa: E402
from mcp.client.streamable_http import streamable_http_client  # noqa: E402
from mcp.shared._httpx_utils import create_mcp_http_client  # noqa: E402
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata  # noqa: E402


class Kit:
    """The differences of 2.x from the other Python clients."""

    uri = str
    error = MCPError

    @staticmethod
    async def call(session, tool, arguments, step):
        await session.call_tool(tool, arguments, progress_callback=step)

    @staticmethod
    async def give_up(session, patience):
        patience.cancel()


async def sample(context, params):
    scenarios.saw("asked", messages=[m.model_dump(mode="json", exclude_none=True) for m in params.messages],
                  maxTokens=params.max_tokens)
    content = types.TextContent(type="text", text="forty-two")
    return types.CreateMessageResult(role="assistant", model="scenario", content=content, stop_reason="endTurn")


async def elicit(context, params):
    scenarios.saw("asked", message=params.message, schema=params.requested_schema)
    return types.ElicitResult(action="accept", content={"username": "ada", "email": "ada@example.com"})


async def main(url, name):
    callbacks = dict(sampling_callback=sample, elicitation_callback=elicit, logging_callback=scenarios.log)
    auth = sign_in.provider(url, OAuthClientProvider, OAuthClientMetadata, lambda back: AuthorizationCodeResult(**back))
    server = streamable_http_client(url, http_client=create_mcp_http_client(auth=auth)) if auth else url
    async with Client(server, **callbacks) as session:
        scenarios.saw("connected", revision=session.protocol_version, server=session.server_info.name)
        await scenarios.ALL[name](session, Kit)
    scenarios.saw("terminated")


anyio.run(main, *sys.argv[1:])
