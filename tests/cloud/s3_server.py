"""A local server of S3 (moto), with a bucket; tests that use it are skipped without moto."""

import contextlib
import http.client
import os

import pytest

BUCKET = "runs-bucket"


@contextlib.contextmanager
def s3_server():
    """The environment of processes that use it, which is also set here within the context."""
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs (the extra s3)")
    # Not in the extra test: pip finds no end to choosing versions of both and all that test asks for.
    moto = pytest.importorskip("moto.server", reason="needs moto[server]: pip install moto[server] s3fs")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    # moto's objects belong to the process: another file of tests may have left some.
    connection = http.client.HTTPConnection(host, port, timeout=60)
    connection.request("POST", "/moto-api/reset")
    assert connection.getresponse().status == 200
    connection.close()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "never-printed",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()  # another file of tests had a server at another port
        s3fs.S3FileSystem().mkdir(BUCKET)
        yield os.environ | environment
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()
