"""An MCP server that writes down what it receives, before it answers.

`ledger.py LEDGER AUDIT` appends a line to LEDGER for each call of a tool and each notification: the
tool, or the method, and whether the file AUDIT has a record of it now. Any tool can be called.
"""

import json
import os
import stat
import sys

LEDGER, AUDIT = sys.argv[1:]


def say(id, result):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}) + "\n")
    sys.stdout.flush()


def has_record(name):
    # A pipe would lose what is read here.
    if not os.path.exists(AUDIT) or not stat.S_ISREG(os.stat(AUDIT).st_mode):
        return False
    with open(AUDIT, encoding="utf-8") as audit:
        whole = [json.loads(line) for line in audit if line.endswith("\n")]
    kinds = ("begin", "message")
    return any(r["kind"] in kinds and name in (r.get("tool"), r.get("method")) for r in whole)


def write_down(name):
    line = f"{name} {'recorded' if has_record(name) else 'unrecorded'}\n"
    with open(LEDGER, "a", encoding="utf-8") as ledger:
        ledger.write(line)


for line in sys.stdin:
    message = json.loads(line)
    method, id, params = message.get("method"), message.get("id"), message.get("params", {})
    if method == "initialize":
        info = {"name": "ledger", "version": "1"}
        version = params["protocolVersion"]
        say(id, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/call":
        write_down(params["name"])
        say(id, {"content": [{"type": "text", "text": params["name"]}]})
    elif method and id is None:
        write_down(method)
    elif method:
        say(id, {})
