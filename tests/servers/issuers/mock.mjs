// An issuer that signs what a test asks for: `mock.mjs`. Prints its URL and that of its controls.
import { constants, createHmac, createPrivateKey, createPublicKey, sign } from 'node:crypto';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

import { CompactSign, exportJWK, generateKeyPair, importJWK } from 'jose';
import { OAuth2Server } from 'oauth2-mock-server';

const server = new OAuth2Server();
await server.issuer.keys.generate('RS256', { kid: 'rs' });
await server.start(0, '127.0.0.1');
server.issuer.url = `http://127.0.0.1:${server.address().port}`;

// The tokens that introspection knows, with what it says of each. The library does not read the body of
// such a request, so the answer is made here.
const opaque = new Map();
let introspections = 0;
let slowness = 0;
const introspect = (request, text) => {
    introspections += 1;
    const credentials = Buffer.from('node:s%2Becret').toString('base64');
    if (request.headers.authorization !== `Basic ${credentials}`) return undefined;
    return { active: false, ...opaque.get(new URLSearchParams(text).get('token')) };
};

const controls = {
    // Makes a key. A public key is what the issuer publishes from then on.
    '/keys': ({ alg, kid, crv }) => server.issuer.keys.generate(alg, { kid, crv: crv ?? undefined }),
    // Signs a token: the header and the claims replace the usual ones, and `null` removes one. What it
    // says is not checked.
    '/token': async ({ kid, header = {}, claims = {} }) => {
        const jwk = server.issuer.keys.toJSON(true).find((key) => key.kid === kid);
        const now = Math.floor(Date.now() / 1000);
        const usual = { iss: server.issuer.url, iat: now, nbf: now - 10, exp: now + 3600 };
        const without = (all) => Object.fromEntries(Object.entries(all).filter(([, value]) => value !== null));
        const payload = without({ ...usual, ...claims });
        const head = without({ alg: jwk.alg, kid, typ: 'at+jwt', ...header });
        const token = new CompactSign(new TextEncoder().encode(JSON.stringify(payload)));
        const crit = Object.fromEntries((head.crit ?? []).map((name) => [name, true]));
        token.setProtectedHeader({ ...head, alg: jwk.alg });
        return { token: await token.sign(await importJWK(jwk, jwk.alg), { crit }) };
    },
    // Makes a token as an attacker does: with this header, and signed with nothing, with a public key of the
    // issuer as a secret, or with a key of the attacker's own, which the header may name.
    '/forge': async ({ header, claims = {}, by }) => {
        const now = Math.floor(Date.now() / 1000);
        const payload = { iss: server.issuer.url, sub: 'ada', iat: now, exp: now + 3600, ...claims };
        const encoded = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
        const jwk = server.issuer.keys.toJSON().find((key) => key.kid === 'rs');
        const own = await generateKeyPair('RS256');
        const head = header.jwk === 'own' ? { ...header, jwk: await exportJWK(own.publicKey) } : header;
        const signed = `${encoded(head)}.${encoded(payload)}`;
        const spki = createPublicKey({ key: jwk, format: 'jwk' }).export({ type: 'spki', format: 'pem' });
        const hmac = (secret) => createHmac('sha256', secret).update(signed).digest('base64url');
        const signatures = {
            nothing: () => '',
            pem: () => hmac(spki),
            modulus: () => hmac(Buffer.from(jwk.n, 'base64url')),
            empty: () => hmac(''),
            own: () => sign('sha256', signed, own.privateKey).toString('base64url'),
            // The issuer's own key, with another algorithm than the one for which it is published.
            'issuer-pss': () => {
                const pair = server.issuer.keys.toJSON(true).find((key) => key.kid === 'rs');
                const key = createPrivateKey({ key: pair, format: 'jwk' });
                const padding = constants.RSA_PKCS1_PSS_PADDING;
                return sign('sha256', signed, { key, padding, saltLength: 32 }).toString('base64url');
            },
        };
        return { token: `${signed}.${signatures[by]()}` };
    },
    // What introspection says of a token.
    '/opaque': ({ token, says }) => void opaque.set(token, says),
    // How long introspection takes, in milliseconds.
    '/slow': ({ ms }) => void (slowness = ms),
    '/count': () => ({ introspections }),
    // The keys, as they are published.
    '/published': () => ({ keys: server.issuer.keys.toJSON() }),
};

const control = createServer(async (request, response) => {
    let text = '';
    for await (const piece of request) text += piece;
    if (request.url === '/introspect') {
        const answer = introspect(request, text);
        await sleep(slowness);
        response.writeHead(answer ? 200 : 401);
        response.end(JSON.stringify(answer ?? {}));
        return;
    }
    const answer = await controls[request.url](JSON.parse(text || '{}'));
    response.end(JSON.stringify(answer ?? {}));
});
control.listen(0, '127.0.0.1', () => {
    console.log(JSON.stringify({ issuer: server.issuer.url, control: `http://127.0.0.1:${control.address().port}` }));
});
