"""The Python SDK, 1.x: `client.py URL SCENARIO`."""

import pathlib
import sys

import anyio
from pydantic import AnyUrl

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import scenarios  # noqa: E402
import sign_in  # noqa: E402
from mcp import ClientSession, McpError, types  # noqa: E402
from mcp.client.auth import OAuthClientProvider  # noqa: E402
from mcp.client.streamable_http import streamable_http_client  # noqa: E402
from mcp.shared._httpx_utils import create_mcp_http_client  # noqa: E402
from mcp.shared.auth import OAuthClientMetadata  # noqa: E402


class Kit:
    """The differences of 1.x from the other Python clients."""

    uri = AnyUrl
    error = McpError

    @staticmethod
    async def call(session, tool, arguments, step):
        # 1.x cannot cancel a call. The id of the next request is read for the cancel notification.
        session.scenario_call = session._request_id
        await session.call_tool(tool, arguments, progress_callback=step)

    @staticmethod
    async def give_up(session, patience):
        params = types.CancelledNotificationParams(requestId=session.scenario_call, reason="enough")
        await session.send_notification(types.ClientNotification(types.CancelledNotification(params=params)))
        patience.cancel()


async def sample(context, params):
    scenarios.saw("asked", messages=[m.model_dump(mode="json", exclude_none=True) for m in params.messages],
                  maxTokens=params.maxTokens)
    content = types.TextContent(type="text", text="forty-two")
    return types.CreateMessageResult(role="assistant", model="scenario", content=content, stopReason="endTurn")


async def elicit(context, params):
    scenarios.saw("asked", message=params.message, schema=params.requestedSchema)
    return types.ElicitResult(action="accept", content={"username": "ada", "email": "ada@example.com"})


async def main(url, name):
    callbacks = dict(sampling_callback=sample, elicitation_callback=elicit, logging_callback=scenarios.log)
    back = lambda back: (back["code"], back.get("state"))  # noqa: E731
    auth = sign_in.provider(url, OAuthClientProvider, OAuthClientMetadata, back)
    client = create_mcp_http_client(auth=auth) if auth else None
    async with streamable_http_client(url, http_client=client) as (read, write, session_id):
        async with ClientSession(read, write, **callbacks) as session:
            welcome = await session.initialize()
            scenarios.saw("connected", revision=welcome.protocolVersion, session=session_id(),
                          server=welcome.serverInfo.name)
            await scenarios.ALL[name](session, Kit)
    scenarios.saw("terminated")


anyio.run(main, *sys.argv[1:])
