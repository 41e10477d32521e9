"""Registers the server behind the gateway with ContextForge."""

import json
import os
import sqlite3
import sys
import time
from urllib.request import Request, urlopen

import jwt

gateway, server, database = sys.argv[1:]

now = int(time.time())
token = jwt.encode(
    {
        "sub": os.environ["PLATFORM_ADMIN_EMAIL"],
        "iat": now,
        "exp": now + 600,
        "iss": "mcpgateway",
        "aud": "mcpgateway-api",
        "jti": os.urandom(8).hex(),
        "user": {"email": os.environ["PLATFORM_ADMIN_EMAIL"], "is_admin": True, "auth_provider": "local"},
        "token_use": "session",
    },
    os.environ["JWT_SECRET_KEY"],
)
body = {"name": "peer", "url": server, "transport": "STREAMABLEHTTP", "visibility": "public"}
headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
with urlopen(Request(f"{gateway}/gateways", json.dumps(body).encode(), headers), timeout=30) as answer:
    assert json.load(answer)["reachable"]

with sqlite3.connect(database) as connection:
    assert connection.execute("UPDATE tools SET name = original_name").rowcount == 2
