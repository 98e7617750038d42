"""A receiver that Alertmanager notifies in place of a pager."""

import http.server
import json
import threading


class Receiver:
    """Listens on loopback while it is entered. `each` gets the name of the receiver and an alert, once for each alert of a
    notification, on a thread of its own."""

    def __init__(self, port, each):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()
                for alert in json.loads(body)["alerts"]:
                    each(self.path.strip("/"), alert)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
