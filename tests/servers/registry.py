"""A registry of packages for tests: it stands in for a company's private one.

It serves one npm package and one Python wheel, both an MCP server called `stand-in-server`, over
HTTPS with the certificate and key that its arguments name. It prints its port, and ends with its
standard input.
"""

import base64
import hashlib
import http.server
import io
import json
import os
import ssl
import sys
import tarfile
import threading
import zipfile

NAME = "stand-in-server"
MODULE = "stand_in_server"
WHEEL = f"{MODULE}-1.0.0-py3-none-any.whl"

# Both servers answer `initialize` and every `tools/call`.
SCRIPT = """#!/usr/bin/env node
const lines = require('readline').createInterface({ input: process.stdin });
const answer = (id, result) => console.log(JSON.stringify({ jsonrpc: '2.0', id, result }));
lines.on('line', (line) => {
  const { id, method, params } = JSON.parse(line);
  if (method === 'initialize') {
    answer(id, { protocolVersion: params.protocolVersion, capabilities: { tools: {} },
      serverInfo: { name: 'npm', version: '1.0.0' } });
  } else if (id !== undefined) {
    answer(id, { content: [{ type: 'text', text: process.env.HOME }] });
  }
});
"""

PROGRAM = """
import json, os, sys
def main():
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = {"content": [{"type": "text", "text": os.environ["HOME"]}]}
        if message["method"] == "initialize":
            result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                      "serverInfo": {"name": "wheel", "version": "1.0.0"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def npm_package():
    manifest = {"name": NAME, "version": "1.0.0", "bin": {NAME: "server.js"}}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, text in [("package.json", json.dumps(manifest)), ("server.js", SCRIPT)]:
            entry = tarfile.TarInfo(f"package/{path}")
            entry.size, entry.mode = len(text), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
    return manifest, packed.getvalue()


def wheel():
    packed = io.BytesIO()
    info = f"{MODULE}-1.0.0.dist-info"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(f"{MODULE}.py", PROGRAM)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{NAME} = {MODULE}:main\n")
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in archive.namelist()))
    return packed.getvalue()


MANIFEST, TARBALL = npm_package()
PYTHON = wheel()


class Registry(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        base = f"https://{self.headers['Host']}"
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(TARBALL).digest()).decode()
        dist = {"tarball": f"{base}/{NAME}.tgz", "integrity": integrity}
        versions = {"1.0.0": {**MANIFEST, "dist": dist}}
        packument = {"name": NAME, "dist-tags": {"latest": "1.0.0"}, "versions": versions}
        page = f'<!DOCTYPE html><html><body><a href="{base}/{WHEEL}">{WHEEL}</a></body></html>'
        found = {
            f"/{NAME}": ("application/json", json.dumps(packument).encode()),
            f"/{NAME}.tgz": ("application/octet-stream", TARBALL),
            f"/simple/{NAME}/": ("text/html", page.encode()),
            f"/{WHEEL}": ("application/octet-stream", PYTHON),
        }.get(self.path)
        kind, body = found or ("text/plain", b"there is no such package\n")
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[1], sys.argv[2])
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    print(server.server_port, flush=True)
    server.serve_forever()
