import configparser, http.server, pathlib, sys

config = configparser.ConfigParser()
config.optionxform = str
config.read(sys.argv[1])
ROOT = pathlib.Path(config["files"]["root"]).resolve()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = (ROOT / self.path.removeprefix("/files/")).resolve()
        if self.path == "/health":
            return self.answer(200, b"ok")
        if self.path.startswith("/files/") and path.is_relative_to(ROOT) and path.is_file():
            return self.answer(200, path.read_bytes())
        self.answer(404, b"")

    def answer(self, status, body):
        self.send_response(status)
        for name, value in config["headers"].items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


address = config["server"]["address"], config.getint("server", "port")
http.server.ThreadingHTTPServer(address, Handler).serve_forever()
