"""Signs a Python client in: what an application and its user's browser do in the OAuth flow."""

import os
import urllib.error
import urllib.parse
import urllib.request

import anyio
import scenarios

CALLBACK = "http://127.0.0.1:1/callback"


class NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


def browse(url):
    """Follows redirects as a browser does, until they lead back to the application."""
    opener = urllib.request.build_opener(NoRedirects, urllib.request.HTTPCookieProcessor())
    for _ in range(10):
        try:
            raise AssertionError(f"no redirect from {url}: {opener.open(url).status}")
        except urllib.error.HTTPError as redirect:
            url = urllib.parse.urljoin(url, redirect.headers["location"])
        if url.startswith(CALLBACK):
            return {name: values[0] for name, values in urllib.parse.parse_qs(urllib.parse.urlparse(url).query).items()}
    raise AssertionError("too many redirects")


class Memory:
    """Where an application keeps what it gets."""

    tokens = None
    client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        scenarios.saw("token", scope=tokens.scope, refreshes=tokens.refresh_token is not None)
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client


def provider(url, oauth, metadata, result):
    """The SDK's provider for an endpoint; `None` if the scenario signs no one in."""
    if "STORY_SIGNS_IN" not in os.environ:
        return None
    back = {}

    async def redirect(target):
        asked = urllib.parse.parse_qs(urllib.parse.urlparse(target).query)
        first = {name: asked.get(name, [None])[0] for name in ("resource", "scope", "client_id")}
        scenarios.saw("redirected", resource=first["resource"], scope=first["scope"], client=first["client_id"])
        back.update(await anyio.to_thread.run_sync(browse, target))

    async def callback():
        return result(back)

    metadata = metadata(
        client_name="scenarios",
        redirect_uris=[CALLBACK],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        token_endpoint_auth_method="none",
    )
    # The id, if it is the URL of a document: then the application does not register itself.
    document = {"client_metadata_url": os.environ["STORY_CLIENT_ID"]} if "STORY_CLIENT_ID" in os.environ else {}
    return oauth(url, metadata, Memory(), redirect, callback, **document)
