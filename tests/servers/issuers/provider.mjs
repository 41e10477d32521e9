// An authorization server with dynamic registration, whose only user signs in and agrees at once:
// `provider.mjs SCOPES LIFETIME`. Prints its URL. With a folder of certificates and the callbacks of a
// client, it registers no client, and fetches the document that is the client's id instead. Prints that id.
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createServer as createSecureServer } from 'node:https';

import { createLocalJWKSet, jwtVerify } from 'jose';
import Provider, { errors } from 'oidc-provider';

const [scopes = 'mcp', lifetime = '600', certificates, ...callbacks] = process.argv.slice(2);
let user = 'ada';

const http = createServer();
await new Promise((resolve) => http.listen(0, '127.0.0.1', resolve));
const issuer = `http://127.0.0.1:${http.address().port}`;

// The site of an application, with the document about it.
const client = certificates && (await serveDocument());
async function serveDocument() {
    const read = (name) => readFileSync(`${certificates}/${name}`);
    const site = createSecureServer({ cert: read('cert'), key: read('key') });
    await new Promise((resolve) => site.listen(0, '127.0.0.1', resolve));
    const id = `https://127.0.0.1:${site.address().port}/client.json`;
    site.on('request', (request, response) => {
        response.setHeader('content-type', 'application/json');
        const document = {
            client_id: id,
            client_name: 'an application with a document',
            application_type: 'native',
            redirect_uris: callbacks,
            grant_types: ['authorization_code', 'refresh_token'],
            response_types: ['code'],
            token_endpoint_auth_method: 'none',
        };
        response.end(JSON.stringify(document));
    });
    return id;
}

// The client as which a node gets tokens for upstream servers. The secret changes when a test says so.
let secret = 's+ecret';
const exchange = 'urn:ietf:params:oauth:grant-type:token-exchange';
const node = {
    client_id: 'node',
    client_secret: secret,
    token_endpoint_auth_method: 'client_secret_basic',
    grant_types: ['client_credentials', exchange],
    redirect_uris: [],
    response_types: [],
};

// The client as which a node signs users in, and links their accounts.
const pages = 'https://mcp.example.com/demo/link';
const linker = {
    client_id: 'linker',
    client_secret: 's+ecret',
    token_endpoint_auth_method: 'client_secret_basic',
    grant_types: ['authorization_code', 'refresh_token'],
    redirect_uris: [`${pages}/signed-in`, `${pages}/agreed`],
    response_types: ['code'],
};

const provider = new Provider(issuer, {
    clients: [node, linker],
    issueRefreshToken: (_, client) => client.grantTypeAllowed('refresh_token'),
    // One that is used twice ends the grant.
    rotateRefreshToken: true,
    // Without the library's check of addresses, which refuses those of this machine.
    fetch: (url, { dispatcher, ...options }) => fetch(url, options),
    scopes: ['openid', 'offline_access', ...scopes.split(' ')],
    clientDefaults: { token_endpoint_auth_method: 'none' },
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    features: {
        devInteractions: { enabled: false },
        registration: { enabled: !client },
        clientIdMetadataDocument: { enabled: Boolean(client), ack: 'draft-02' },
        introspection: { enabled: true },
        clientCredentials: { enabled: true },
        resourceIndicators: {
            enabled: true,
            useGrantedResource: () => true,
            // A token for the endpoint that the client names, as a JWT.
            getResourceServerInfo: (_, resource) => ({
                scope: scopes,
                audience: resource,
                accessTokenTTL: Number(lifetime),
                accessTokenFormat: 'jwt',
            }),
        },
    },
    ttl: { Interaction: 60, Session: 600, Grant: 600, IdToken: 600 },
    interactions: { url: (_, interaction) => `/agree/${interaction.uid}` },
});

// In place of the pages on which a user signs in and agrees.
const agree = async (request, response) => {
    const { params, grantId } = await provider.interactionDetails(request, response);
    if (!user) {
        const result = { error: 'access_denied' };
        return provider.interactionFinished(request, response, result);
    }
    const grant = grantId
        ? await provider.Grant.find(grantId)
        : new provider.Grant({ accountId: user, clientId: params.client_id });
    grant.addOIDCScope(params.scope ?? '');
    if (params.resource) grant.addResourceScope(params.resource, scopes);
    const result = { login: { accountId: user }, consent: { grantId: await grant.save() } };
    await provider.interactionFinished(request, response, result, { mergeWithLastSubmission: true });
};

// A token of this user for this resource, as a JWT.
const mint = async (client, accountId, resource, scope, secs) => {
    const info = { scope, audience: resource, accessTokenTTL: secs, accessTokenFormat: 'jwt' };
    const token = new provider.AccessToken({ client, accountId, scope, gty: exchange, grantId: 'g' });
    token.resourceServer = new provider.ResourceServer(resource, info);
    return token.save();
};

// Token exchange (RFC 8693): a token of a user for one resource becomes one for another. What the subject
// tokens were, and how long the new ones last, is for tests.
const subjects = [];
let lasts = Number(lifetime);
let refusal;
let pauseMs = 0;
provider.registerGrantType(
    exchange,
    async (ctx) => {
        const { client, params } = ctx.oidc;
        await new Promise((resolve) => setTimeout(resolve, pauseMs));
        if (refusal) throw new errors.InvalidGrant(refusal);
        const keys = createLocalJWKSet(await (await fetch(`${issuer}/jwks`)).json());
        const verified = await jwtVerify(params.subject_token, keys, { issuer }).catch(() => undefined);
        if (!verified) throw new errors.InvalidGrant('the subject token is not valid');
        if (params.scope?.includes('forbidden')) throw new errors.InvalidScope('no', params.scope);
        subjects.push(verified.payload);
        const { sub } = verified.payload;
        const access_token = await mint(client, sub, params.resource, params.scope ?? scopes, lasts);
        const issued_token_type = 'urn:ietf:params:oauth:token-type:access_token';
        ctx.body = { access_token, issued_token_type, token_type: 'Bearer', expires_in: lasts };
    },
    ['subject_token', 'subject_token_type', 'requested_token_type', 'scope', 'resource', 'audience'],
);

// What tests ask for, and see.
const seen = { client_credentials: 0, [exchange]: 0, refused: 0 };
provider.on('grant.success', ({ oidc }) => (seen[oidc.params.grant_type] += 1));
provider.on('grant.error', () => (seen.refused += 1));
provider.on('server_error', (_, error) => console.error(error));
const controls = {
    '/control/seen': () => ({ ...seen, exchanges: subjects }),
    // A token of a user, as if they had signed in.
    '/control/mint': async ({ sub, aud, secs = 600 }) => {
        return { token: await mint(await provider.Client.find('node'), sub, aud, scopes, secs) };
    },
    '/control/exchange': (body) => {
        lasts = body.secs ?? lasts;
        pauseMs = body.pause_ms ?? 0;
        refusal = body.refusal;
    },
    // Who signs in from now on; nobody agrees without one.
    '/control/user': (body) => {
        user = body.sub;
    },
    '/control/secret': async (body) => {
        (await provider.Client.find('node')).clientSecret = body.secret;
    },
};
const control = async (request, response) => {
    let text = '';
    for await (const piece of request) text += piece;
    const said = await controls[request.url](JSON.parse(text || '{}'));
    response.end(JSON.stringify(said ?? {}));
};

const answer = provider.callback();
http.on('request', (request, response) => {
    const [, first] = request.url.split('/');
    const by = { agree, control }[first] ?? answer;
    const served = by(request, response);
    Promise.resolve(served).catch((error) => {
        console.error(error);
        response.writeHead(500).end();
    });
});
console.log(JSON.stringify({ issuer, client, control: `${issuer}/control` }));
