"""A collector of OpenTelemetry: takes OTLP over HTTP, and shows a test what arrived.

The messages are those of `opentelemetry-proto`. A field that it does not know is an error. Arguments: the port for OTLP; with
TLS also the files of its certificate and key. What arrived is shown at another port.
"""

import json
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf.json_format import MessageToDict
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

KINDS = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}
lock = threading.Lock()
arrived = {"spans": [], "metrics": [], "logs": [], "wrong": [], "headers": []}
# `lost`: what arrives is taken, and not acknowledged. `rejected`: so many records of a request of logs are, if it
# has as many as `rejected_of`.
control = {"status": 200, "delay": 0.0, "lost": False, "rejected": 0, "rejected_of": 0, "retry_after": 0, "records_max": 0}


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
        for group in message.resource_logs:
            resource = attributes(group.resource.attributes)
            for scope in group.scope_logs:
                arrived["logs"] += [log(one, scope.scope.name, resource) for one in scope.log_records]


def log(one, scope, resource):
    return {
        "time": one.time_unix_nano,
        "severity": one.severity_text,
        "body": one.body.string_value,
        "trace": one.trace_id.hex(),
        "attributes": attributes(one.attributes),
        "scope": scope,
        "resource": resource,
    }


def records_of(body):
    message = ExportLogsServiceRequest()
    message.ParseFromString(body)
    return sum(len(scope.log_records) for group in message.resource_logs for scope in group.scope_logs)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", kind="application/x-protobuf"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if status == 503 and control["retry_after"]:
            self.send_header("Retry-After", str(control["retry_after"]))
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
        is_logs = self.path == "/v1/logs"
        if is_logs and 0 < control["records_max"] < records_of(body):
            return self.answer(413)
        with lock:
            try:
                if self.headers["Content-Type"] != "application/x-protobuf":
                    raise ValueError(f"the type {self.headers['Content-Type']}")
                arrived["headers"].append(dict(self.headers))
                take(self.path, body)
            except Exception as wrong:  # The test shows it.
                arrived["wrong"].append(repr(wrong))
        if control["lost"]:
            self.close_connection = True
            return
        answer = ExportLogsServiceResponse()
        if is_logs and control["rejected"] and records_of(body) >= control["rejected_of"]:
            answer.partial_success.rejected_log_records = control["rejected"]
        self.answer(200, answer.SerializeToString())


class Server(ThreadingHTTPServer):
    # Connections of a former one are no reason to refuse the port.
    allow_reuse_address = True


port, *files = sys.argv[1:] or ["0"]
server = Server(("127.0.0.1", int(port)), Handler)
scheme = "http"
if files:
    scheme = "https"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    server.socket = context.wrap_socket(server.socket, server_side=True)
shown = Server(("127.0.0.1", 0), Handler)
threading.Thread(target=shown.serve_forever, daemon=True).start()
urls = {"url": f"{scheme}://127.0.0.1:{server.server_port}", "shown": f"http://127.0.0.1:{shown.server_port}"}
print(json.dumps(urls), flush=True)
server.serve_forever()
