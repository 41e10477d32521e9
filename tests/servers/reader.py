"""An MCP server whose tool `read` answers with the text of a file, as the server finds it while the call runs."""

import json
import sys

TOOL = {"name": "read", "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}}}

for line in sys.stdin:
    message = json.loads(line)
    method, id, params = message.get("method"), message.get("id"), message.get("params", {})
    if id is None or method is None:
        continue
    result = {}
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "reader", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [TOOL]}
    elif method == "tools/call":
        with open(params["arguments"]["path"], encoding="utf-8") as file:
            result = {"content": [{"type": "text", "text": file.read()}]}
    print(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}), flush=True)
