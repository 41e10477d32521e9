// An authorization server with dynamic registration, whose only user signs in and agrees at once:
// `provider.mjs SCOPES LIFETIME`. Prints its URL. With a folder of certificates and the callbacks of a
// client, it registers no client, and fetches the document that is the client's id instead. Prints that id.
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createServer as createSecureServer } from 'node:https';

import Provider from 'oidc-provider';

const [scopes = 'mcp', lifetime = '600', certificates, ...callbacks] = process.argv.slice(2);
const user = 'ada';

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

const provider = new Provider(issuer, {
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
    const grant = grantId
        ? await provider.Grant.find(grantId)
        : new provider.Grant({ accountId: user, clientId: params.client_id });
    grant.addOIDCScope(params.scope ?? '');
    if (params.resource) grant.addResourceScope(params.resource, scopes);
    const result = { login: { accountId: user }, consent: { grantId: await grant.save() } };
    await provider.interactionFinished(request, response, result, { mergeWithLastSubmission: true });
};

const answer = provider.callback();
http.on('request', (request, response) => {
    const served = request.url.startsWith('/agree/') ? agree(request, response) : answer(request, response);
    Promise.resolve(served).catch((error) => {
        console.error(error);
        response.writeHead(500).end();
    });
});
console.log(JSON.stringify({ issuer, client }));
