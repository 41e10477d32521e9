"""A mirror of package registries for tests: it stands in for a company's private one.

`mirror.py CERT KEY LOG` answers on loopback over HTTPS with this certificate and key. It prints its
port, and ends with its standard input. `/at/SCHEME/HOST/PATH` is the content of that URL of a real
registry. Links of a registry's answers to packages become links to this mirror. It writes the path
of each request into LOG.
"""

import gzip
import http.server
import os
import re
import ssl
import sys
import threading
import urllib.error
import urllib.request

LINK = re.compile(rb'(href="|"(?:url|tarball)":\s*")(https?)://([^/"]+)/')
FORWARDED = ("Accept", "Range", "User-Agent")
RETURNED = ("Content-Type", "Content-Range", "Accept-Ranges", "Last-Modified")
PIECE = 1 << 16

# One context for all requests: each would read the machine's authorities again.
opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=ssl.create_default_context()))
written = threading.Lock()


class Mirror(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        with written, open(sys.argv[3], "a", encoding="utf-8") as log:
            log.write(f"{self.path}\n")
        parts = self.path.split("/", 4)
        if len(parts) < 5 or parts[1] != "at":
            return self.send_error(404)
        headers = {name: self.headers[name] for name in FORWARDED if self.headers[name]}
        if not headers.get("Range"):
            headers["Accept-Encoding"] = "gzip"
        url = f"{parts[2]}://{parts[3]}/{parts[4]}"
        request = urllib.request.Request(url, headers=headers, method=self.command)
        try:
            with opener.open(request, timeout=60) as answer:
                self.pass_on(answer)
        except urllib.error.HTTPError as answer:
            self.pass_on(answer)
        except OSError as error:
            self.send_error(502, f"the registry cannot be reached: {error}")

    do_HEAD = do_GET

    def do_POST(self):
        # The clients go on without an audit of the packages.
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_error(404)

    def pass_on(self, answer):
        kind = answer.headers.get("Content-Type", "")
        if self.command == "GET" and re.search("json|html", kind):
            body = answer.read()
            if answer.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            mirror = f"https://{self.headers['Host']}/at".encode()
            body = LINK.sub(rb"\1" + mirror + rb"/\2/\3/", body)
            self.begin(answer, str(len(body)))
            self.wfile.write(body)
            return
        # A package. Registries do not compress them again, or the client gets it as it is.
        self.begin(answer, answer.headers.get("Content-Length"))
        while self.command == "GET" and (piece := answer.read(PIECE)):
            self.wfile.write(piece)

    def begin(self, answer, length):
        self.send_response(answer.status)
        for name in RETURNED:
            if value := answer.headers.get(name):
                self.send_header(name, value)
        if length is None:
            self.close_connection = True
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", length)
        self.end_headers()

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, context):
        super().__init__(("127.0.0.1", 0), Mirror)
        self.context = context

    def finish_request(self, request, address):
        # In the thread of the connection: a client that never speaks stops no other one.
        request.settimeout(60)
        with self.context.wrap_socket(request, server_side=True) as stream:
            self.RequestHandlerClass(stream, address, self)

    def handle_error(self, request, address):
        pass


if __name__ == "__main__":
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[1], sys.argv[2])
    server = Server(context)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    print(server.server_port, flush=True)
    server.serve_forever()
