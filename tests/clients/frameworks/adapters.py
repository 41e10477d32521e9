"""The Python frameworks and clients, each with the same few operations.

An adapter is entered for one endpoint. It lists the names of `tools`, and `call`s one: it returns the
text of the result, and raises if the result is an error. Where the framework has progress,
resources and prompts of its own, the adapter has them, too. Frameworks are imported where they
are used: no environment has all of them.
"""

import contextlib
import json


class Failed(Exception):
    """The tool answered with an error."""


def text_of(result):
    """The text of a `CallToolResult` of either SDK."""
    text = "".join(getattr(block, "text", "") for block in result.content)
    if getattr(result, "isError", False) or getattr(result, "is_error", False):
        raise Failed(text)
    return text


class Adapter:
    def __init__(self, url):
        self.url = url
        self.stack = contextlib.AsyncExitStack()

    async def __aenter__(self):
        await self.open()
        return self

    async def __aexit__(self, *_):
        await self.stack.aclose()


class LangChain(Adapter):
    """langchain-mcp-adapters: tools, resources and prompts of one session."""

    async def open(self):
        from langchain_mcp_adapters.callbacks import Callbacks
        from langchain_mcp_adapters.client import MultiServerMCPClient
        from langchain_mcp_adapters.tools import load_mcp_tools

        self.steps = []

        async def step(progress, total, message, context):
            self.steps.append(progress)

        connection = {"transport": "streamable_http", "url": self.url}
        self.client = MultiServerMCPClient({"tenant": connection})
        self.session = await self.stack.enter_async_context(self.client.session("tenant"))
        tools = await load_mcp_tools(self.session, callbacks=Callbacks(on_progress=step), handle_tool_errors=False)
        self.named = {tool.name: tool for tool in tools}

    async def tools(self):
        return list(self.named)

    async def call(self, tool, arguments):
        result = await self.named[tool].ainvoke(arguments)
        return result if isinstance(result, str) else "".join(block.get("text", "") for block in result)

    async def progress(self, tool, arguments):
        self.steps.clear()
        await self.call(tool, arguments)
        return self.steps

    async def read(self, uri):
        from langchain_mcp_adapters.resources import load_mcp_resources

        return (await load_mcp_resources(self.session, uris=uri))[0].as_string()

    async def prompt(self, name):
        from langchain_mcp_adapters.prompts import load_mcp_prompt

        return (await load_mcp_prompt(self.session, name))[0].content


class McpUse(Adapter):
    """mcp-use: a session of its client."""

    async def open(self):
        from mcp_use import MCPClient

        client = MCPClient.from_dict({"mcpServers": {"tenant": {"url": self.url}}})
        self.session = await client.create_session("tenant")
        self.stack.push_async_callback(client.close_all_sessions)

    async def tools(self):
        return [tool.name for tool in await self.session.list_tools()]

    async def call(self, tool, arguments):
        return text_of(await self.session.call_tool(tool, arguments))

    async def resources(self):
        return [str(resource.uri) for resource in await self.session.list_resources()]

    async def read(self, uri):
        return (await self.session.read_resource(uri)).contents[0].text

    async def prompts(self):
        return [prompt.name for prompt in await self.session.list_prompts()]

    async def prompt(self, name):
        return (await self.session.get_prompt(name)).messages[0].content.text


class OpenAiAgents(Adapter):
    """openai-agents: a server of an agent. Without a model, the test calls the tools itself."""

    async def open(self):
        from agents.mcp import MCPServerStreamableHttp

        server = MCPServerStreamableHttp({"url": self.url}, client_session_timeout_seconds=30)
        self.server = await self.stack.enter_async_context(server)

    async def tools(self):
        return [tool.name for tool in await self.server.list_tools()]

    async def call(self, tool, arguments):
        return text_of(await self.server.call_tool(tool, arguments))

    async def resources(self):
        return [str(resource.uri) for resource in (await self.server.list_resources()).resources]

    async def read(self, uri):
        return (await self.server.read_resource(uri)).contents[0].text

    async def prompts(self):
        return [prompt.name for prompt in (await self.server.list_prompts()).prompts]

    async def prompt(self, name):
        return (await self.server.get_prompt(name)).messages[0].content.text


class PydanticAi(Adapter):
    """pydantic-ai: a toolset."""

    async def open(self):
        from pydantic_ai.mcp import MCPToolset

        self.steps = []

        async def step(progress, total, message):
            self.steps.append(progress)

        toolset = MCPToolset(self.url, progress_handler=step, tool_error_behavior="error")
        self.toolset = await self.stack.enter_async_context(toolset)

    async def tools(self):
        return [tool.name for tool in await self.toolset.list_tools()]

    async def call(self, tool, arguments):
        result = await self.toolset.direct_call_tool(tool, arguments)
        return result if isinstance(result, str) else json.dumps(result)

    async def progress(self, tool, arguments):
        self.steps.clear()
        await self.call(tool, arguments)
        return self.steps

    async def resources(self):
        return [str(resource.uri) for resource in await self.toolset.list_resources()]

    async def read(self, uri):
        return await self.toolset.read_resource(uri)

    async def prompts(self):
        return [prompt.name for prompt in await self.toolset.list_prompts()]

    async def prompt(self, name):
        return str((await self.toolset.get_prompt(name)).messages[0].content)


class LlamaIndex(Adapter):
    """llama-index-tools-mcp: its client opens a session for each operation."""

    async def open(self):
        from llama_index.tools.mcp import BasicMCPClient

        self.client = BasicMCPClient(self.url)

    async def tools(self):
        return [tool.name for tool in (await self.client.list_tools()).tools]

    async def call(self, tool, arguments):
        return text_of(await self.client.call_tool(tool, arguments))

    async def progress(self, tool, arguments):
        steps = []

        async def step(progress, total, message):
            steps.append(progress)

        await self.client.call_tool(tool, arguments, progress_callback=step)
        return steps

    async def resources(self):
        return [str(resource.uri) for resource in (await self.client.list_resources()).resources]

    async def read(self, uri):
        return (await self.client.read_resource(uri)).contents[0].text

    async def prompts(self):
        return [prompt.name for prompt in (await self.client.list_prompts()).prompts]

    async def prompt(self, name):
        return str((await self.client.get_prompt(name))[0].content)


class GoogleAdk(Adapter):
    """google-adk: a toolset. Its resources have names, and it has no prompts."""

    async def open(self):
        from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams

        self.steps = []

        async def step(progress, total=None, message=None, **_):
            self.steps.append(progress)

        params = StreamableHTTPConnectionParams(url=self.url, timeout=30)
        self.toolset = McpToolset(connection_params=params, progress_callback=step)
        self.stack.push_async_callback(self.toolset.close)
        self.named = {tool.name: tool for tool in await self.toolset.get_tools()}

    async def tools(self):
        return list(self.named)

    async def call(self, tool, arguments):
        result = await self.named[tool].run_async(args=arguments, tool_context=None)
        if not isinstance(result, dict):
            return text_of(result)
        text = "".join(block.get("text", "") for block in result.get("content", []))
        if result.get("isError") or "error" in result:
            raise Failed(text or result["error"])
        return text

    async def progress(self, tool, arguments):
        self.steps.clear()
        await self.call(tool, arguments)
        return self.steps


class FastMcp(Adapter):
    """FastMCP's client."""

    async def open(self):
        from fastmcp import Client

        self.client = await self.stack.enter_async_context(Client(self.url))

    async def tools(self):
        return [tool.name for tool in await self.client.list_tools()]

    async def call(self, tool, arguments):
        return text_of(await self.client.call_tool_mcp(tool, arguments))

    async def progress(self, tool, arguments):
        steps = []

        async def step(progress, total, message):
            steps.append(progress)

        await self.client.call_tool_mcp(tool, arguments, progress_handler=step)
        return steps

    async def resources(self):
        return [str(resource.uri) for resource in await self.client.list_resources()]

    async def read(self, uri):
        return (await self.client.read_resource(uri))[0].text

    async def prompts(self):
        return [prompt.name for prompt in await self.client.list_prompts()]

    async def prompt(self, name):
        return (await self.client.get_prompt(name)).messages[0].content.text


ALL = {
    "langchain": LangChain,
    "mcp-use": McpUse,
    "openai-agents": OpenAiAgents,
    "pydantic-ai": PydanticAi,
    "llama-index": LlamaIndex,
    "google-adk": GoogleAdk,
    "fastmcp": FastMcp,
}
