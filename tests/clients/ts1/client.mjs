// The TypeScript SDK, 1.x: `client.mjs URL SCENARIO`.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
    CreateMessageRequestSchema,
    ElicitRequestSchema,
    LoggingMessageNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';

import { play } from '../scenarios.mjs';

await play({
    Client,
    StreamableHTTPClientTransport,
    finishSignIn: (transport, back) => transport.finishAuth(back.get('code')),
    call: (client, params, options) => client.callTool(params, undefined, options),
    onLog: (client, hear) => client.setNotificationHandler(LoggingMessageNotificationSchema, (n) => hear(n.params)),
    onSampling: (client, answer) => client.setRequestHandler(CreateMessageRequestSchema, (r) => answer(r.params)),
    onElicitation: (client, answer) => client.setRequestHandler(ElicitRequestSchema, (r) => answer(r.params)),
});
