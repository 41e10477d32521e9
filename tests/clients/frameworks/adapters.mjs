// The JavaScript frameworks and clients, each with the same few operations.
//
// An adapter opens one endpoint. It lists the names of `tools`, and `call`s one: it returns the text of
// the result, and throws if the result is an error. Where the framework has progress, resources and
// prompts of its own, the adapter has them, too.

import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

function textOf(result) {
    const blocks = Array.isArray(result) ? result : result.content;
    const text = blocks.map((block) => block.text ?? '').join('');
    if (result.isError) throw new Error(text);
    return text;
}

// The operations that every client with the interface of the SDKs has.
const operations = (client, call, progress) => ({
    tools: async () => (await client.listTools()).tools.map(({ name }) => name),
    call: async (name, args) => textOf(await call({ name, arguments: args })),
    ...(progress && {
        progress: async (name, args) => {
            const steps = [];
            await progress({ name, arguments: args }, (step) => steps.push(step.progress));
            return steps;
        },
    }),
    resources: async () => (await client.listResources()).resources.map(({ uri }) => uri),
    read: async (uri) => (await client.readResource({ uri })).contents[0].text,
    prompts: async () => (await client.listPrompts()).prompts.map(({ name }) => name),
    prompt: async (name) => (await client.getPrompt({ name })).messages[0].content.text,
    close: () => client.close(),
});

// The TypeScript SDK, 2.x, over any transport.
async function sdk(transport, negotiation = 'auto') {
    const { Client } = await import('@modelcontextprotocol/client');
    const client = new Client({ name: 'scenarios', version: '1' }, { versionNegotiation: { mode: negotiation } });
    await client.connect(transport);
    const call = (params, options) => client.callTool(params, options);
    return operations(client, call, (params, onprogress) => call(params, { onprogress }));
}

// A server of the test may start slowly beside other tests. Some clients would wait for 3 or 5 seconds.
const PATIENCE_SECS = 60;
const PATIENCE_MS = PATIENCE_SECS * 1000;

const script = (name) => fileURLToPath(new URL(`node_modules/${name}`, import.meta.url));

export const adapters = {
    async 'sdk-2'(url) {
        const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
        return sdk(new StreamableHTTPClientTransport(new URL(url)));
    },

    // mcp-remote: a stdio server that passes everything on to the endpoint. Its client here is SDK 2.
    async 'mcp-remote'(url) {
        const { StdioClientTransport } = await import('@modelcontextprotocol/client/stdio');
        const args = [script('mcp-remote/dist/proxy.js'), url, '--transport', 'http-only'];
        return sdk(new StdioClientTransport({ command: process.execPath, args, stderr: 'ignore' }));
    },

    // The command line of the MCP Inspector: a process and a session for each operation. Its load test
    // is many calls in one session.
    async inspector(url) {
        const run = async (...words) => {
            const all = [script('.bin/mcp-inspector'), '--cli', url, '--transport', 'http', ...words];
            try {
                const { stdout } = await promisify(execFile)(process.execPath, all, { maxBuffer: 8 << 20 });
                return JSON.parse(stdout);
            } catch (failed) {
                if (failed.stdout?.startsWith('{')) return JSON.parse(failed.stdout);
                throw failed;
            }
        };
        const call = ({ name, arguments: args }, more = []) => {
            const pairs = Object.entries(args).flatMap(([key, value]) => ['--tool-arg', `${key}=${value}`]);
            return run('--method', 'tools/call', '--tool-name', name, ...pairs, ...more);
        };
        const load = (name, args, times) =>
            call({ name, arguments: args }, ['--load', '--load-requests', times, '--load-concurrency', times].map(String));
        const all = operations(
            {
                listTools: () => run('--method', 'tools/list'),
                listResources: () => run('--method', 'resources/list'),
                readResource: ({ uri }) => run('--method', 'resources/read', '--uri', uri),
                listPrompts: () => run('--method', 'prompts/list'),
                getPrompt: ({ name }) => run('--method', 'prompts/get', '--prompt-name', name),
                close() {},
            },
            call,
        );
        return { ...all, load };
    },

    async 'ai-sdk'(url) {
        const { createMCPClient } = await import('@ai-sdk/mcp');
        const client = await createMCPClient({ transport: { type: 'http', url } });
        const tools = await client.tools();
        return {
            ...operations(client),
            call: async (name, args) => textOf(await tools[name].execute(args, { messages: [], toolCallId: name })),
        };
    },

    async mastra(url) {
        const { MCPClient } = await import('@mastra/mcp');
        const patience = { timeout: PATIENCE_MS, connectTimeout: PATIENCE_MS };
        const server = { url: new URL(url), enableProgressTracking: true, ...patience };
        const client = new MCPClient({ id: url, servers: { tenant: server }, timeout: PATIENCE_MS });
        const tools = await client.listTools();
        const steps = [];
        await client.progress.onUpdate('tenant', ({ progress }) => steps.push(progress));
        const call = async (name, args) => textOf(await tools[`tenant_${name}`].execute(args, {}));
        return {
            tools: async () => Object.keys(tools).map((name) => name.replace('tenant_', '')),
            call,
            async progress(name, args) {
                steps.length = 0;
                await call(name, args);
                return steps;
            },
            resources: async () => (await client.resources.list()).tenant.map(({ uri }) => uri),
            read: async (uri) => (await client.resources.read('tenant', uri)).contents[0].text,
            prompts: async () => (await client.prompts.list()).tenant.map(({ name }) => name),
            prompt: async (name) => (await client.prompts.get({ serverName: 'tenant', name })).messages[0].content.text,
            close: () => client.disconnect(),
        };
    },

    async 'openai-agents-js'(url) {
        const { MCPServerStreamableHttp } = await import('@openai/agents');
        const server = new MCPServerStreamableHttp({ url, name: 'tenant', clientSessionTimeoutSeconds: PATIENCE_SECS, timeout: PATIENCE_MS });
        await server.connect();
        return {
            tools: async () => (await server.listTools()).map(({ name }) => name),
            call: async (name, args) => textOf(await server.callToolResult(name, args)),
            resources: async () => (await server.listResources()).resources.map(({ uri }) => uri),
            read: async (uri) => (await server.readResource(uri)).contents[0].text,
            close: () => server.close(),
        };
    },

    async 'langchain-js'(url) {
        const { MultiServerMCPClient } = await import('@langchain/mcp-adapters');
        const steps = [];
        const client = new MultiServerMCPClient({
            mcpServers: { tenant: { transport: 'http', url } },
            onProgress: ({ progress }) => steps.push(progress),
        });
        const tools = Object.fromEntries((await client.getTools()).map((tool) => [tool.name, tool]));
        const call = async (name, args) => {
            const result = await tools[name].invoke(args);
            return typeof result === 'string' ? result : textOf(result);
        };
        return {
            tools: async () => Object.keys(tools),
            call,
            async progress(name, args) {
                steps.length = 0;
                await call(name, args);
                return steps;
            },
            resources: async () => (await client.listResources()).tenant.map(({ uri }) => uri),
            read: async (uri) => (await client.readResource('tenant', uri))[0].text,
            close: () => client.close(),
        };
    },
};
