// The TypeScript SDK, 2.x: `client.mjs URL SCENARIO`. It tries the newest revision first.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

import { play } from '../scenarios.mjs';

await play({
    Client,
    StreamableHTTPClientTransport,
    options: { versionNegotiation: { mode: 'auto' } },
    finishSignIn: (transport, back) => transport.finishAuth(back),
    call: (client, params, options) => client.callTool(params, options),
    onLog: (client, hear) => client.setNotificationHandler('notifications/message', (n) => hear(n.params)),
    onSampling: (client, answer) => client.setRequestHandler('sampling/createMessage', (r) => answer(r.params)),
    onElicitation: (client, answer) => client.setRequestHandler('elicitation/create', (r) => answer(r.params)),
});
