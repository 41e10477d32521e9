"""An MCP server whose tools, prompts and instructions are those of a file, read for each request.

`defined.py FILE` speaks over its standard streams, `defined.py FILE http` over HTTP on loopback: it prints
its port, and ends with its standard input. FILE is JSON: `instructions`, `tools` and `prompts`.
"""

import http.server
import json
import os
import sys
import threading


def answer(message):
    """Returns the response to a message, or None."""
    if "id" not in message or "method" not in message:
        return None
    with open(sys.argv[1], encoding="utf-8") as file:
        defined = json.load(file)
    method, params = message["method"], message.get("params", {})
    result = {}
    if method == "initialize":
        result = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {"listChanged": True}, "prompts": {"listChanged": True}},
            "serverInfo": {"name": "defined", "version": "1"},
            "instructions": defined["instructions"],
        }
    elif method == "tools/list":
        result = {"tools": defined["tools"]}
    elif method == "prompts/list":
        result = {"prompts": defined["prompts"]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": "called " + params["name"]}]}
    elif method == "prompts/get":
        result = {"messages": []}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        response = answer(json.loads(body))
        body = b"" if response is None else json.dumps(response).encode()
        self.send_response(202 if response is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.send_response(405)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_DELETE = do_GET

    def log_message(self, *_):
        pass


if sys.argv[2:] == ["http"]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    print(server.server_port, flush=True)
    server.serve_forever()
for line in sys.stdin:
    response = answer(json.loads(line))
    if response is not None:
        print(json.dumps(response), flush=True)
