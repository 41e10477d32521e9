// An authorization server with dynamic registration and client-id metadata documents, whose only user
// signs in and agrees at once: `provider.mjs SCOPES LIFETIME`. Prints its URL.
import { createServer } from 'node:http';

import Provider from 'oidc-provider';

const [scopes = 'mcp', lifetime = '600'] = process.argv.slice(2);
const user = 'ada';

const http = createServer();
await new Promise((resolve) => http.listen(0, '127.0.0.1', resolve));
const issuer = `http://127.0.0.1:${http.address().port}`;

const provider = new Provider(issuer, {
    scopes: ['openid', 'offline_access', ...scopes.split(' ')],
    clientDefaults: { token_endpoint_auth_method: 'none' },
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    features: {
        devInteractions: { enabled: false },
        registration: { enabled: true },
        clientIdMetadataDocument: { enabled: true, ack: 'draft-02' },
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
console.log(JSON.stringify({ issuer }));
