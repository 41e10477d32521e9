// A server of the TypeScript SDK over Streamable HTTP that keeps the `Authorization` of each request, and
// answers 401 to a token that a test has revoked: `headers.mjs PORT`. GET /seen has what it kept.
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';

import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';

const seen = [];
const revoked = new Set();
const transports = new Map();

const subject = (authorization) => {
    const [, payload] = authorization?.split('.') ?? [];
    return payload ? JSON.parse(Buffer.from(payload, 'base64url')) : {};
};

const mcp = () => {
    const server = new McpServer({ name: 'headers', version: '1' });
    server.registerTool('whoami', { description: 'Says whose token the request has.' }, ({ requestInfo }) => {
        const { sub, aud, jti } = subject(requestInfo.headers.authorization);
        return { content: [{ type: 'text', text: JSON.stringify({ sub, aud, jti }) }] };
    });
    server.registerTool('ask', { description: 'Asks the user.' }, async (extra) => {
        const params = { message: 'go on?', requestedSchema: { type: 'object', properties: {} } };
        const { action } = await server.server.elicitInput(params, { relatedRequestId: extra.requestId });
        return { content: [{ type: 'text', text: action }] };
    });
    return server;
};

const serve = async (request, response) => {
    let text = '';
    for await (const piece of request) text += piece;
    if (request.url === '/seen') return response.end(JSON.stringify(seen));
    if (request.url === '/revoke') {
        seen.forEach(({ authorization }) => revoked.add(authorization));
        return response.end('{}');
    }
    const { authorization } = request.headers;
    const body = text ? JSON.parse(text) : undefined;
    const session = request.headers['mcp-session-id'];
    const what = body?.method ?? (body ? 'answer' : request.method);
    seen.push({ what, authorization, aud: subject(authorization).aud, headers: JSON.stringify(request.headers) });
    if (!authorization || revoked.has(authorization)) {
        response.writeHead(401, { 'www-authenticate': 'Bearer error="invalid_token"' });
        return response.end();
    }
    if (session && !transports.has(session)) return response.writeHead(404).end();
    let transport = transports.get(session);
    if (!transport) {
        const onsessioninitialized = (id) => transports.set(id, transport);
        transport = new StreamableHTTPServerTransport({ sessionIdGenerator: randomUUID, onsessioninitialized });
        await mcp().connect(transport);
    }
    await transport.handleRequest(request, response, body);
};

createServer((request, response) => {
    serve(request, response).catch((error) => {
        console.error(error);
        response.writeHead(500).end();
    });
}).listen(Number(process.argv[2]), '127.0.0.1', () => console.log('listening'));
