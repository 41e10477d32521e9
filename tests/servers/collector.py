"""A collector of OpenTelemetry: takes OTLP over HTTP, and shows a test what arrived.

The messages are those of `opentelemetry-proto`. A field that it does not know is an error.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf.json_format import MessageToDict
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

KINDS = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}
lock = threading.Lock()
arrived = {"spans": [], "metrics": [], "logs": [], "wrong": [], "headers": []}
control = {"status": 200, "delay": 0.0}


def attributes(of):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in of}


def span(one, resource):
    return {
        "name": one.name,
        "kind": one.kind,
        "trace": one.trace_id.hex(),
        "span": one.span_id.hex(),
        "parent": one.parent_span_id.hex(),
        "state": one.trace_state,
        "links": [[link.trace_id.hex(), link.span_id.hex()] for link in one.links],
        "status": one.status.code,
        "start": one.start_time_unix_nano,
        "end": one.end_time_unix_nano,
        "attributes": attributes(one.attributes),
        "resource": resource,
    }


def take(path, body):
    message = KINDS[path]()
    message.ParseFromString(body)
    if len(UnknownFieldSet(message)):
        raise ValueError("an unknown field")
    if path == "/v1/traces":
        for group in message.resource_spans:
            resource = attributes(group.resource.attributes)
            for scope in group.scope_spans:
                arrived["spans"] += [span(one, resource) for one in scope.spans]
    elif path == "/v1/metrics":
        for group in message.resource_metrics:
            for scope in group.scope_metrics:
                arrived["metrics"] += [
                    {**MessageToDict(metric), "resource": attributes(group.resource.attributes)} for metric in scope.metrics
                ]
    else:
        arrived["logs"].append(MessageToDict(message))


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", kind="application/x-protobuf"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        with lock:
            body = json.dumps(arrived).encode()
        self.answer(200, body, "application/json")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/control":
            control.update(json.loads(body))
            return self.answer(200)
        time.sleep(control["delay"])
        if control["status"] != 200:
            return self.answer(control["status"])
        with lock:
            try:
                if self.headers["Content-Type"] != "application/x-protobuf":
                    raise ValueError(f"the type {self.headers['Content-Type']}")
                arrived["headers"].append(dict(self.headers))
                take(self.path, body)
            except Exception as wrong:  # The test shows it.
                arrived["wrong"].append(repr(wrong))
        self.answer(200)


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0), Handler)
print(json.dumps({"url": f"http://127.0.0.1:{server.server_port}"}), flush=True)
server.serve_forever()
