"""clients.py NAME URL COUNT: sends so many requests by this client of Python, one after the other.

Libraries of HTTP use the method in METHOD, or GET. SDKs try again as often as RETRIES says, or twice.
"""

import os
import sys
import tempfile

METHOD = os.environ.get("METHOD", "GET")
RETRIES = int(os.environ.get("RETRIES", "2"))


def requests(url):
    import requests

    session = requests.Session()
    return lambda: session.request(METHOD, url).raise_for_status()


def urllib3(url):
    import urllib3

    retry = urllib3.Retry(5, status_forcelist=[429], backoff_factor=0.1)
    pool = urllib3.PoolManager(retries=retry)
    return lambda: pool.request(METHOD, url)


def urllib3_default(url):
    import urllib3

    pool = urllib3.PoolManager()

    def send():
        status = pool.request(METHOD, url).status
        if status != 200:
            raise RuntimeError(f"status {status}")

    return send


def httpx(url):
    import httpx

    client = httpx.Client()
    return lambda: client.request(METHOD, url).raise_for_status()


def huggingface_hub(url):
    from huggingface_hub import hf_hub_download

    folder = tempfile.TemporaryDirectory()
    numbers = iter(range(100))
    # A file takes a HEAD and a GET.
    return lambda: hf_hub_download(
        "some/model", f"file{next(numbers)}", endpoint=url, cache_dir=folder.name
    )


def openai(url):
    import openai

    client = openai.OpenAI(base_url=url, api_key="none", max_retries=RETRIES)
    return lambda: client.models.list()


def anthropic(url):
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=RETRIES)
    return lambda: client.models.list()


def stripe(url):
    import stripe

    client = stripe.StripeClient(
        "sk_test_none", base_addresses={"api": url}, max_network_retries=2
    )
    return lambda: client.v1.customers.list()


def boto3(url):
    import boto3

    keys = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}
    client = boto3.client("s3", endpoint_url=url, region_name="eu-west-1", **keys)
    return lambda: client.head_bucket(Bucket="a-bucket")


def otlp(url):
    """Spans by OTLP over HTTP."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExportResult

    exporter = OTLPSpanExporter(endpoint=f"{url}/v1/traces")
    tracer = TracerProvider().get_tracer("a tracer")

    def send():
        span = tracer.start_span("a span")
        span.end()
        if exporter.export([span]) is not SpanExportResult.SUCCESS:
            raise RuntimeError("the spans are lost")

    return send


def http3_curl(url):
    import http3

    return http3.curl(url)


def http3_aioquic(url):
    import http3

    return http3.aioquic(url)


def hammer(url):
    """Goes on at once, whatever it is told."""
    import requests

    session = requests.Session()
    return lambda: session.get(url)


name, url, count = sys.argv[1:]
send = globals()[name.replace("-", "_")](url)
try:
    for _ in range(int(count)):
        send()
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
