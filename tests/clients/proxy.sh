#!/usr/bin/env bash
# proxy.sh NAME URL: sends a request by curl through a proxy, whose app is at this URL. `client.sh`
# calls it, with a folder of its own in $scratch.
set -euo pipefail
name=$1 app=${2#http://}
tools=${CARGO_TARGET_DIR:-$(dirname "$0")/../../target}/tools/bin
PATH=$PATH:/usr/sbin:$tools
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

# Envoy retries what these lines of its route say.
envoy() {
  cat >"$scratch/envoy.yaml" <<YAML
static_resources:
  listeners:
    - address: {socket_address: {address: 127.0.0.1, port_value: $port}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: in
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        - match: {prefix: /}
                          route:
                            cluster: app
                            timeout: 0s
                            retry_policy: $1
  clusters:
    - name: app
      load_assignment:
        cluster_name: app
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: ${app#*:}}}}}]}]
YAML
  command envoy -c "$scratch/envoy.yaml" -l error --concurrency 1 --use-dynamic-base-id
}

start() {
  case $name in
  envoy) envoy '{retry_on: 5xx, num_retries: 3}' ;;
  envoy-429) envoy '{retry_on: retriable-status-codes, retriable_status_codes: [429], num_retries: 3}' ;;
  envoy-back-off)
    envoy '{retry_on: retriable-status-codes, retriable_status_codes: [429], num_retries: 3,
      rate_limited_retry_back_off: {reset_headers: [{name: retry-after}], max_interval: 300s}}'
    ;;
  nginx)
    printf '%s' "daemon off; pid $scratch/pid; error_log /dev/null; events {} http { access_log off;
      client_body_temp_path $scratch/a; proxy_temp_path $scratch/b; fastcgi_temp_path $scratch/c;
      uwsgi_temp_path $scratch/d; scgi_temp_path $scratch/e;
      server { listen 127.0.0.1:$port; location / { proxy_pass http://$app; } } }" >"$scratch/nginx.conf"
    nginx -e /dev/null -c "$scratch/nginx.conf"
    ;;
  haproxy)
    printf '%s\n' 'defaults' ' mode http' ' timeout connect 5s' ' timeout client 1m' ' timeout server 1m' \
      ' retries 3' ' retry-on all-retryable-errors' "listen all" " bind 127.0.0.1:$port" \
      " server app $app" >"$scratch/haproxy.cfg"
    haproxy -f "$scratch/haproxy.cfg"
    ;;
  caddy)
    HOME=$scratch caddy reverse-proxy --from "http://127.0.0.1:$port" --to "$app"
    ;;
  esac
}

start >"$scratch/log" 2>&1 &
proxy=$!
trap 'kill $(jobs -p) $(ps -o pid= --ppid $proxy) 2>/dev/null; wait' EXIT
until (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
  kill -0 $proxy
  sleep 0.1
done
curl -sS --fail "http://127.0.0.1:$port/"
