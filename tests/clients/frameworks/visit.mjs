// Uses tenants through a JavaScript framework or client: `visit.mjs FRAMEWORK TENANTS`.
//
// `TENANTS` is a JSON list; each entry names a tenant, its endpoint and what to ask of it. The
// scenario is the same for every framework. What a framework does not have, its adapter does not
// define, and the scenario prints that it lacks it. Each observation is a line of JSON.

import { adapters } from './adapters.mjs';

const [framework, tenants] = process.argv.slice(2);
for (const tenant of JSON.parse(tenants)) {
    const client = await adapters[framework](tenant.url);
    await visit(client, tenant);
    await client.close();
}
// Some frameworks keep timers, which would keep the process.
process.exit(0);

async function visit(client, tenant) {
    const saw = (kind, more) => console.log(JSON.stringify({ saw: kind, tenant: tenant.name, ...more }));
    const can = (operation) => {
        if (!client[operation]) saw('lacks', { what: operation });
        return Boolean(client[operation]);
    };
    saw('tools', { names: await client.tools() });
    saw('call', { text: await client.call(tenant.call.tool, tenant.call.arguments) });
    const { many, big, error, progress, resource, prompt } = tenant;
    if (many && client.load) {
        saw('load', await client.load(many.tool, many.number ? { ...many.arguments, [many.number]: 3 } : {}, many.times));
    } else if (many) {
        const numbers = Array.from({ length: many.times }, (_, at) => at + 1);
        const args = (n) => (many.number ? { ...many.arguments, [many.number]: n } : {});
        saw('many', { texts: await Promise.all(numbers.map((n) => client.call(many.tool, args(n)))) });
    }
    if (big) saw('big', { length: (await client.call(big.tool, big.arguments)).length });
    if (error) {
        try {
            saw('no error', { text: await client.call(error.tool, error.arguments) });
        } catch (raised) {
            saw('error', { text: String(raised.message) });
        }
    }
    if (progress && can('progress')) saw('progress', { steps: await client.progress(progress.tool, progress.arguments) });
    if (resource) {
        if (can('resources')) saw('resources', { names: await client.resources() });
        if (can('read')) saw('read', { text: await client.read(resource) });
    }
    if (prompt) {
        if (can('prompts')) saw('prompts', { names: await client.prompts() });
        if (can('prompt')) saw('prompt', { text: await client.prompt(prompt) });
    }
}
