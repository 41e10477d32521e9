"""An MCP server that shows the `_meta` that it gets with a call.

`meta` answers at once. `wait` may be called twice: its first run sends progress if the client asked for it, and
never answers; each later one answers. Runs are recorded in the file of EVERYTHING_RECORD. `ask` sends a request
for sampling with the `_meta` of its arguments, and shows what the client answered.
"""

import json
import os
import sys

RECORD = os.environ.get("EVERYTHING_RECORD", "")
TOOLS = [
    {"name": "meta", "inputSchema": {"type": "object"}},
    {"name": "fail", "inputSchema": {"type": "object"}},
    {"name": "ask", "inputSchema": {"type": "object"}},
    {"name": "wait", "inputSchema": {"type": "object"}, "annotations": {"idempotentHint": True}},
]


asked = {}


def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def runs():
    try:
        with open(RECORD) as record:
            return len(record.readlines())
    except FileNotFoundError:
        return 0


def ask(id, arguments, meta):
    asked[f"ask {id}"] = id
    params = {"messages": [], "maxTokens": 1}
    if "meta" in arguments:
        params["_meta"] = arguments["meta"]
    if arguments.get("within"):
        # A span of its own, in the trace of the call.
        params["_meta"] = {"traceparent": meta["traceparent"][:36] + "00000000000000aa-01"}
    say({"id": f"ask {id}", "method": "sampling/createMessage", "params": params})


def call(id, params):
    meta = params.get("_meta", {})
    if params["name"] == "ask":
        return ask(id, params.get("arguments", {}), meta)
    if params["name"] == "wait":
        before = runs()
        with open(RECORD, "a") as record:
            record.write(json.dumps(meta) + "\n")
        if before == 0:
            if "progressToken" in meta:
                say({"method": "notifications/progress", "params": {"progressToken": meta["progressToken"], "progress": 1}})
            return
    content = [{"type": "text", "text": json.dumps(meta)}]
    say({"id": id, "result": {"content": content, "isError": params["name"] == "fail"}})


for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        server = {"name": "traced", "version": "1"}
        say({"id": id, "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}})
    elif method == "tools/list":
        say({"id": id, "result": {"tools": TOOLS}})
    elif method == "tools/call":
        call(id, message["params"])
    elif method is None and id in asked:
        answer = {key: message[key] for key in ("result", "error") if key in message}
        say({"id": asked.pop(id), "result": {"content": [{"type": "text", "text": json.dumps(answer)}]}})
    elif id is not None and method is not None:
        say({"id": id, "error": {"code": -32601, "message": "unknown"}})
