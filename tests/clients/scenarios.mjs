// The scenarios of the TypeScript clients. Each prints its observations, one JSON object a line.
// The parameter `kit` contains the differences between the two SDKs.

import { existsSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

export const saw = (kind, more = {}) => console.log(JSON.stringify({ saw: kind, ...more }));

const error = (e) => saw('error', { code: e.code ?? null, name: e.name ?? null, message: String(e.message) });

const scenarios = {
    // Each common operation once.
    async tour(client) {
        const { tools } = await client.listTools();
        saw('tools', { names: tools.map((tool) => tool.name) });
        const { resources } = await client.listResources();
        saw('resources', { uris: resources.map((resource) => resource.uri) });
        const { prompts } = await client.listPrompts();
        saw('prompts', { names: prompts.map((prompt) => prompt.name) });
        const read = await client.readResource({ uri: 'test://static-text' });
        saw('read', { text: read.contents[0].text });
        const got = await client.getPrompt({ name: 'test_simple_prompt' });
        saw('prompt', { text: got.messages[0].content.text });
        const result = await client.callTool({ name: 'test_simple_text', arguments: {} });
        saw('result', { text: result.content[0].text });
        await client.ping();
        saw('pong');
        try {
            await client.callTool({ name: 'no_such_tool', arguments: {} });
        } catch (e) {
            error(e);
        }
    },

    // Numbered progress. Tests that cut the connection use this scenario, too.
    async count(client, kit) {
        await count(client, kit, { n: 10, interval_ms: 30 });
    },

    // Two calls at once, each with its own progress.
    async two(client, kit) {
        await Promise.all([
            count(client, kit, { n: 10, interval_ms: 30 }, 'left'),
            count(client, kit, { n: 10, interval_ms: 30 }, 'right'),
        ]);
    },

    async sampling(client, kit) {
        kit.onSampling(client, (params) => {
            saw('asked', { messages: params.messages, maxTokens: params.maxTokens });
            return { role: 'assistant', model: 'scenario', stopReason: 'endTurn', content: { type: 'text', text: 'forty-two' } };
        });
        const result = await client.callTool({ name: 'test_sampling', arguments: { prompt: 'What is it?' } });
        saw('result', { text: result.content[0].text });
    },

    async elicitation(client, kit) {
        kit.onElicitation(client, (params) => {
            saw('asked', { message: params.message, schema: params.requestedSchema });
            return { action: 'accept', content: { username: 'ada', email: 'ada@example.com' } };
        });
        const result = await client.callTool({ name: 'test_elicitation', arguments: { message: 'Who are you?' } });
        saw('result', { text: result.content[0].text });
    },

    // Cancels a call after its third step; the session continues.
    async cancel(client, kit) {
        const patience = new AbortController();
        const onprogress = ({ progress }) => {
            saw('progress', { progress });
            if (progress === 3) patience.abort('enough');
        };
        try {
            await kit.call(client, { name: 'rh_count', arguments: { n: 500, interval_ms: 20 } }, { onprogress, signal: patience.signal });
            saw('result');
        } catch (e) {
            error(e);
        }
        // The notification and the next call are two requests, so their order is not guaranteed.
        let cancelled = '0';
        for (let tries = 0; tries < 100 && cancelled === '0'; tries++) {
            const result = await client.callTool({ name: 'rh_cancelled', arguments: {} });
            cancelled = result.content[0].text;
            await new Promise((resolve) => setTimeout(resolve, 20));
        }
        saw('after', { cancelled });
    },

    // Calls and streams in one session, until the test ends it.
    async hold(client, kit) {
        for (let turns = 0; goesOn(); turns++) {
            const result = await client.callTool({ name: 'rh_echo', arguments: { turn: turns } });
            if (result.content[0].text !== JSON.stringify({ turn: turns })) throw new Error(JSON.stringify(result));
            await count(client, kit, { n: 10, interval_ms: 50 }, turns);
            saw('turn', { turns: turns + 1 });
        }
    },

    // A session without requests, until the test ends it.
    async idle(client) {
        await client.callTool({ name: 'test_simple_text', arguments: {} });
        saw('turn');
        while (goesOn()) await sleep(50);
        await after(client);
    },

    // One long stream, which begins when the test has begun it. The session continues after any final response of
    // the stream, when the test ends it: a call at that time would be another one in flight when a node dies.
    async long(client, kit) {
        saw('ready');
        while (!hasBegun()) await sleep(20);
        try {
            await count(client, kit, { n: 60, interval_ms: 50 });
        } catch (e) {
            error(e);
        }
        while (goesOn()) await sleep(50);
        await after(client);
    },
};

// Whether the scenario continues: until the test removes the file that it has named.
const goesOn = () => existsSync(process.env.STORY_GOES_ON);

// Whether the test has begun what the scenario waits for.
const hasBegun = () => existsSync(`${process.env.STORY_GOES_ON}.begun`);

async function after(client) {
    let result;
    for (let calls = 0; calls < 4; calls++) result = await client.callTool({ name: 'test_simple_text', arguments: {} });
    saw('after', { text: result.content[0].text });
}

async function count(client, kit, args, who = null) {
    const onprogress = ({ progress, total, message }) => saw('progress', { progress, total, message, who });
    const result = await kit.call(client, { name: 'rh_count', arguments: args }, { onprogress });
    saw('result', { text: result.content[0].text, who });
}

export async function play(kit) {
    const [url, name] = process.argv.slice(2);
    const client = new kit.Client(
        { name: 'scenarios', version: '1' },
        { capabilities: { sampling: {}, elicitation: {} }, ...kit.options },
    );
    client.onerror = (e) => saw('onerror', { message: String(e.message) });
    // The fixture logs each number that it counts.
    kit.onLog(client, ({ level, data }) => saw('log', { level, data }));
    const authProvider = process.env.STORY_SIGNS_IN ? new (await import('./sign_in.mjs')).Application() : undefined;
    const open = () => new kit.StreamableHTTPClientTransport(new URL(url), { authProvider });
    let transport = open();
    try {
        await client.connect(transport);
    } catch (e) {
        if (!authProvider?.back) throw e;
        // As an application that was opened again by its user's browser.
        await kit.finishSignIn(transport, authProvider.back);
        transport = open();
        await client.connect(transport);
    }
    saw('connected', { revision: transport.protocolVersion, session: transport.sessionId, server: client.getServerVersion()?.name });
    await scenarios[name](client, kit);
    await transport.terminateSession();
    saw('terminated');
    await client.close();
}
