"""An MCP server whose answers are fixed texts, so that a test knows every byte.

Numbers have unusual forms, keys have unusual orders, and some fields are in no revision. A
program that parses and rewrites the answers changes their bytes.
"""

import json
import sys

TOOL = (
    '{"name":"plain","title":"Plain","inputSchema":{"type":"object","$schema":"https://json-schema.org/draft/2020-12/schema",'
    '"$defs":{"z":{"$anchor":"here","type":"number","minimum":1.0,"maximum":1e3}},"properties":{"b":{"$ref":"#/$defs/z"},'
    '"a":{"type":"string"}},"allOf":[{"if":{"required":["b"]},"then":{"required":["a"]}}],"additionalProperties":false,'
    '"x-vendor":{"z":1,"a":2.50}},"outputSchema":{"type":"object","properties":{"n":{"type":"number"}}},'
    '"annotations":{"readOnlyHint":true,"title":"T","vendor":"\\u00e9"},"_meta":{"vendor.example/k":[1,2.0]},"vendorField":1E2}'
)
RESULT = (
    '{"content":[{"type":"text","text":"{\\"n\\":1.0}","annotations":{"priority":0.50,"audience":["user"]}}],'
    '"structuredContent":{"n":1.0,"big":12345678901234567890,"z":null,"a":"\\u00e9\\/"},"vendorField":{"b":1,"a":[1.10]}}'
)
RESOURCE = (
    '{"uri":"test://plain","name":"plain","title":"Plain","size":10,"annotations":{"lastModified":"2025-01-12T15:00:58Z",'
    '"priority":1.0,"audience":["assistant"]},"vendorField":true}'
)
CAPABILITIES = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "prompts": {"listChanged": True},
    "completions": {},
}

heard = {"roots": 0}


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(method, params="{}"):
    say(f'{{"jsonrpc":"2.0","method":"{method}","params":{params}}}')


def result(id, text):
    say(f'{{"jsonrpc":"2.0","id":{json.dumps(id)},"result":{text}}}')


def error(id, text):
    say(f'{{"jsonrpc":"2.0","id":{json.dumps(id)},"error":{text}}}')


def text(words):
    return json.dumps({"content": [{"type": "text", "text": words}]})


def call(id, name):
    if name == "plain":
        result(id, RESULT)
    elif name == "announce":
        for list in ("tools", "resources", "prompts"):
            note(f"notifications/{list}/list_changed")
        result(id, text("announced"))
    elif name == "roots_heard":
        result(id, text(str(heard["roots"])))
    elif name == "needs_url":
        error(id, '{"code":-32042,"message":"look at this first","data":{"elicitations":[{"mode":"url",'
                  '"elicitationId":"e1","url":"https://example.com/e1","message":"look"}]}}')
    elif name == "asks_url":
        say('{"jsonrpc":"2.0","id":"u","method":"elicitation/create","params":{"mode":"url","message":"look",'
            '"url":"https://example.com/e2","elicitationId":"e2"}}')
        reply = json.loads(sys.stdin.readline())
        note("notifications/elicitation/complete", '{"elicitationId":"e2"}')
        result(id, text(json.dumps(reply.get("result") or reply.get("error"), sort_keys=True)))
    else:
        error(id, '{"code":-32602,"message":"unknown tool"}')


for line in sys.stdin:
    message = json.loads(line)
    method, id, params = message.get("method"), message.get("id"), message.get("params", {})
    if method == "initialize":
        result(id, json.dumps({"protocolVersion": params["protocolVersion"], "capabilities": CAPABILITIES,
                               "serverInfo": {"name": "plain", "version": "1"}}))
    elif method == "tools/list":
        others = ('{"name":"%s","inputSchema":{"type":"object"}}' % name
                  for name in ("announce", "roots_heard", "needs_url", "asks_url"))
        result(id, '{"tools":[' + ",".join([TOOL, *others]) + ']}')
    elif method == "resources/list":
        result(id, '{"resources":[' + RESOURCE + ']}')
    elif method == "prompts/list":
        result(id, '{"prompts":[]}')
    elif method == "resources/subscribe":
        result(id, "{}")
    elif method == "completion/complete":
        context = json.dumps(params.get("context"), sort_keys=True)
        result(id, json.dumps({"completion": {"values": [context]}}))
    elif method == "tools/call":
        call(id, params["name"])
    elif method == "notifications/roots/list_changed":
        heard["roots"] += 1
    elif id is not None and method:
        error(id, '{"code":-32601,"message":"no such method"}')
