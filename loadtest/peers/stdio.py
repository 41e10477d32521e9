"""The server behind the gateways: two tools over the standard streams, at the lowest cost in Python."""

import sys
from json import dumps, loads
from time import sleep


def schema(**properties: str) -> dict:
    return {
        "type": "object",
        "properties": {name: {"type": of} for name, of in properties.items()},
    }


TOOLS = [
    {"name": "echo", "inputSchema": schema(message="string", number="integer", list="array")},
    {"name": "count", "inputSchema": schema(n="integer", interval_ms="integer")},
]


def send(**message) -> None:
    sys.stdout.write(dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def call(params: dict) -> str:
    arguments = params["arguments"]
    if params["name"] == "echo":
        return arguments["message"]
    n = arguments["n"]
    token = params.get("_meta", {}).get("progressToken")
    for progress in range(1, n + 1):
        if progress > 1 and arguments["interval_ms"]:
            sleep(arguments["interval_ms"] / 1000)
        if token is not None:
            params = {"progressToken": token, "progress": progress, "total": n}
            send(method="notifications/progress", params=params)
    return f"counted to {n}"


def answer(method: str, params: dict) -> dict:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "echo", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": call(params)}]}
    return {}


for line in sys.stdin:
    message = loads(line)
    # Notifications get no response.
    if "id" in message and "method" in message:
        result = answer(message["method"], message.get("params", {}))
        send(id=message["id"], result=result)
