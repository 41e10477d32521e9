// Signs a TypeScript client in: what an application and its user's browser do in the OAuth flow.

import { saw } from './scenarios.mjs';

// An application that registers itself and keeps what it gets in memory.
export class Application {
    redirectUrl = 'http://127.0.0.1:1/callback';
    // The id, if it is the URL of a document: then the application does not register itself.
    clientMetadataUrl = process.env.STORY_CLIENT_ID;
    clientMetadata = {
        client_name: 'scenarios',
        redirect_uris: [this.redirectUrl],
        grant_types: ['authorization_code', 'refresh_token'],
        response_types: ['code'],
        token_endpoint_auth_method: 'none',
    };

    state = () => 'a-state';
    clientInformation = () => this.client;
    saveClientInformation = (client) => {
        this.client = client;
    };
    tokens = () => this.kept;
    saveTokens = (tokens) => {
        saw('token', { scope: tokens.scope ?? null, refreshes: 'refresh_token' in tokens });
        this.kept = tokens;
    };
    saveCodeVerifier = (verifier) => {
        this.verifier = verifier;
    };
    codeVerifier = () => this.verifier;

    async redirectToAuthorization(url) {
        const [resource, scope, client] = ['resource', 'scope', 'client_id'].map((name) => url.searchParams.get(name));
        saw('redirected', { resource, scope, client });
        this.back = await browse(url, this.redirectUrl);
    }
}

// Follows redirects as a browser does, until they lead back to the application or, without `end`, to a page.
export async function browse(url, end) {
    const cookies = new Map();
    for (let hops = 0; hops < 10; hops += 1) {
        const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join('; ');
        const response = await fetch(url, { redirect: 'manual', headers: { cookie } });
        for (const set of response.headers.getSetCookie()) {
            const [name, value] = set.split(';')[0].split('=');
            cookies.set(name, value);
        }
        const location = response.headers.get('location');
        if (!location && !end && response.ok) return undefined;
        if (!location) throw new Error(`no redirect from ${url}: ${response.status} ${await response.text()}`);
        url = new URL(location, url);
        if (end && url.href.startsWith(end)) return url.searchParams;
    }
    throw new Error('too many redirects');
}
