// Two tools on the TypeScript SDK 1.x, over Streamable HTTP with sessions.

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';

import { createMcpExpressApp } from '@modelcontextprotocol/sdk/server/express.js';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { isInitializeRequest } from '@modelcontextprotocol/sdk/types.js';
import { z } from 'zod';

const echo = { message: z.string(), number: z.number().optional(), list: z.array(z.number()).optional() };
const count = { n: z.number().int(), interval_ms: z.number().int() };
const text = (text) => ({ content: [{ type: 'text', text }] });

function server() {
    const server = new McpServer({ name: 'echo', version: '1' });
    server.registerTool('echo', { inputSchema: echo }, async ({ message }) => text(message));
    server.registerTool('count', { inputSchema: count }, async ({ n, interval_ms }, extra) => {
        const progressToken = extra._meta?.progressToken;
        for (let progress = 1; progress <= n; progress++) {
            if (progress > 1 && interval_ms > 0) await sleep(interval_ms);
            if (progressToken === undefined) continue;
            const params = { progressToken, progress, total: n };
            await extra.sendNotification({ method: 'notifications/progress', params });
        }
        return text(`counted to ${n}`);
    });
    return server;
}

const sessions = new Map();
const app = createMcpExpressApp();

app.post('/mcp', async (request, response) => {
    let transport = sessions.get(request.headers['mcp-session-id']);
    if (!transport && isInitializeRequest(request.body)) {
        transport = new StreamableHTTPServerTransport({
            sessionIdGenerator: randomUUID,
            onsessioninitialized: (id) => sessions.set(id, transport),
        });
        transport.onclose = () => sessions.delete(transport.sessionId);
        await server().connect(transport);
    }
    if (!transport) return response.status(404).send('no such session');
    await transport.handleRequest(request, response, request.body);
});

async function other(request, response) {
    const transport = sessions.get(request.headers['mcp-session-id']);
    if (!transport) return response.status(404).send('no such session');
    await transport.handleRequest(request, response);
}
app.get('/mcp', other);
app.delete('/mcp', other);

app.listen(Number(process.argv[2]), '127.0.0.1');
