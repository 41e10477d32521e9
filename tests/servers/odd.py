"""An MCP server that violates the protocol, over stdin and stdout.

Each tool violates it in another way, except `ok`. The server reads its input on one thread, so
a tool that hangs blocks the whole server, as in many real servers.
"""

import json
import os
import sys
import time

out = sys.stdout.buffer


def write(data):
    out.write(data)
    out.flush()


def say(message, end=b"\n"):
    write(json.dumps(message).encode() + end)


def text(words):
    return {"content": [{"type": "text", "text": words}]}


def answer(id, result):
    say({"jsonrpc": "2.0", "id": id, "result": result})


def junk(id, _):
    write(b"Listening on port 3000...\n\n{\"not\": \"json-rpc\"}\n[1, 2\n\xff\xfe\n\x00\n")
    answer(id, text("after junk"))
    write(b"bye\n")


def die(id, _):
    os._exit(3)


def half(id, _):
    write(b'{"jsonrpc":"2.0","id":')
    os._exit(0)


def hang(id, _):
    time.sleep(3600)


def silent(id, _):
    """Never answers, while the server still reads its input."""


def twice(id, _):
    answer(id, text("first"))
    answer(id, text("second"))
    say({"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": "third"}})


def strange(id, _):
    for other in ("nobody-asked", 999999, -1, None, 1.5, {"a": 1}):
        say({"jsonrpc": "2.0", "id": other, "result": text("for nobody")})
    say({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": "nobody", "progress": 1}})
    say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "nobody"}})
    answer(id, text("after strange ids"))


def neither(id, _):
    say({"jsonrpc": "2.0", "id": id})


def long(id, _):
    write(b'{"jsonrpc":"2.0","id":1,"result":"')
    for _ in range(100):
        write(b"x" * (1 << 20))
    write(b'"}\n')
    answer(id, text("after a long line"))


def talkative(id, _):
    for _ in range(160):
        sys.stderr.write("x" * (64 << 10) + "\n")
    answer(id, text("after ten megabytes of stderr"))


def crlf(id, _):
    say({"jsonrpc": "2.0", "id": id, "result": text("with CRLF")}, b"\r\n")


def batch(id, _):
    say([{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "in a batch"}},
         {"jsonrpc": "2.0", "id": id, "result": text("in a batch")}])


def ping(id, _):
    say({"jsonrpc": "2.0", "id": "are-you-there", "method": "ping"})
    pong = json.loads(sys.stdin.readline())
    answer(id, text(json.dumps(pong, sort_keys=True)))


def flood(id, arguments):
    token = arguments["_meta"]["progressToken"]
    for step in range(1, 10001):
        say({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": step}})
    answer(id, text("after a flood"))


def ask(id, _):
    """A sampling request to a client that has not declared the capability."""
    say({"jsonrpc": "2.0", "id": "question", "method": "sampling/createMessage",
         "params": {"messages": [], "maxTokens": 1}})
    reply = json.loads(sys.stdin.readline())
    answer(id, text(json.dumps(reply, sort_keys=True)))


def schema(id, params):
    answer(id, text(json.dumps(params.get("_meta", {}), sort_keys=True)))


def ok(id, _):
    answer(id, text("ok"))


TOOLS = {f.__name__: f for f in (junk, die, half, hang, silent, twice, strange, neither, long, talkative, crlf, batch,
                                 ping, flood, ask, schema, ok)}

for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method == "initialize":
        if sys.argv[1:] == ["mute"]:
            time.sleep(3600)
        if sys.argv[1:] == ["refuse"]:
            say({"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": "not today"}})
            continue
        version = sys.argv[2] if sys.argv[1:2] == ["version"] else message["params"]["protocolVersion"]
        answer(id, {"protocolVersion": version, "capabilities": {"tools": {}, "logging": {}},
                    "serverInfo": {"name": "odd", "version": "1"}})
    elif method == "tools/list":
        answer(id, {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]})
    elif method == "tools/call":
        TOOLS[message["params"]["name"]](id, message["params"])
    elif id is not None:
        say({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no such method"}})
