"""A batch service: sends each line of batch files to a server, and writes replies as OpenAI and `vllm run-batch` do."""

import http.client
import json
import urllib.parse


class BatchRunner:
    """Runs each batch file once.

    Args:
      server: answers the requests.
      layout: "openai" or "vllm".
    """

    def __init__(self, server, layout="openai"):
        self.layout, self.seen, self.lines = layout, set(), []
        parts = urllib.parse.urlsplit(server.base_url)
        self.connection = http.client.HTTPConnection(parts.hostname, parts.port)

    def run(self, folder):
        """Return the reply lines of the files that are new in a folder's batch/."""
        replies = []
        for path in sorted(set((folder / "batch").glob("round-*.jsonl")) - self.seen):
            self.seen.add(path)
            for line in path.read_text().splitlines():
                request = json.loads(line)
                assert set(request) == {"custom_id", "method", "url", "body"}
                self.lines.append(request)
                replies.append(self.reply(request))
        return replies

    def reply(self, request):
        assert (request["method"], request["url"]) == ("POST", "/v1/chat/completions")
        self.connection.request("POST", request["url"], json.dumps(request["body"]))
        response = self.connection.getresponse()
        status, body = response.status, json.loads(response.read())
        return (openai_line if self.layout == "openai" else vllm_line)(request["custom_id"], status, body)


def openai_line(custom_id, status, body):
    response = {"status_code": status, "request_id": "req_1", "body": body}
    return {"id": "batch_req_1", "custom_id": custom_id, "response": response, "error": None}


def vllm_line(custom_id, status, body):
    if status == 200:
        response = {"status_code": 200, "request_id": "vllm-batch-1", "body": body}
        return {"id": "vllm-1", "custom_id": custom_id, "response": response, "error": None}
    response = {"status_code": status, "request_id": "vllm-batch-1", "body": None}
    return {"id": "vllm-1", "custom_id": custom_id, "response": response, "error": body}


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
