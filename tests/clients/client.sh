#!/usr/bin/env bash
# client.sh NAME URL [COUNT]: sends so many requests (one, unless it says otherwise) by the client of
# this name, one after the other, and fails if one of them fails.
#
# A client is configured as its documentation says where it does not retry by itself. Nothing that
# this machine configures reaches it: no proxy, no registry, no file of a package manager.
set -euo pipefail
if [ -z "${ALONE:-}" ]; then
  exec env -i ALONE=1 PATH="$PATH" METHOD="${METHOD:-GET}" RETRIES="${RETRIES:-2}" \
    CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-}" RUSTUP_HOME="${RUSTUP_HOME:-${HOME:-/root}/.rustup}" \
    bash "$0" "$@"
fi
folder=$(cd "$(dirname "$0")" && pwd)
clients=${CARGO_TARGET_DIR:-$folder/../../target}/clients
name=$1 url=$2 count=${3:-1}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export HOME=$scratch

one_by_one() {
  for _ in $(seq "$count"); do "$@"; done
}

case $name in
curl) one_by_one curl -q -sS --fail -X "$METHOD" "$url" ;;
curl-retry) one_by_one curl -q -sS --fail -X "$METHOD" --retry 3 -o "$scratch/body" "$url" ;;
wget) one_by_one wget --no-config -q --server-response --content-on-error -O "$scratch/body" "$url" ;;
wget-retry) one_by_one wget --no-config -q --server-response --retry-on-http-error=429,503 -O "$scratch/body" "$url" ;;
pip)
  export PIP_CONFIG_FILE=/dev/null
  one_by_one "$clients/python/bin/pip" --disable-pip-version-check --no-cache-dir --no-input \
    index versions --index-url "$url/simple" a-package
  ;;
uv)
  echo a-package >"$scratch/requirements.in"
  one_by_one "$clients/python/bin/uv" pip compile --quiet --no-cache --no-config \
    --python "$clients/python/bin/python" --default-index "$url/simple" "$scratch/requirements.in"
  ;;
npm)
  export npm_config_registry=$url npm_config_cache=$scratch npm_config_update_notifier=false
  export npm_config_userconfig=/dev/null npm_config_globalconfig=$scratch/npmrc
  one_by_one npm view --loglevel=error a-package version
  ;;
cargo)
  mkdir "$scratch/home"
  printf '[source.crates-io]\nreplace-with = "it"\n[source.it]\nregistry = "sparse+%s/index/"\n' \
    "$url" >"$scratch/home/config.toml"
  CARGO_HOME=$scratch/home one_by_one cargo info a-package --registry crates-io
  ;;
# A page that asks for a stream of events, or loads something by a script, and is closed after a while.
chromium-*)
  one_by_one timeout 12 chromium --headless=new --no-sandbox --disable-gpu --user-data-dir="$scratch" \
    --virtual-time-budget=9000 --dump-dom "$url/page-${name#chromium-}"
  ;;
# Samples about itself, of which it sends a batch each second.
prometheus*)
  retry=$([ "$name" = prometheus ] && echo false || echo true)
  printf '%s\n' 'global: {scrape_interval: 1s}' \
    'scrape_configs: [{job_name: a, static_configs: [{targets: ["127.0.0.1:PORT"]}]}]' \
    "remote_write: [{url: \"$url/api/v1/write\", queue_config: {retry_on_http_429: $retry}}]" >"$scratch/prometheus.yml"
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  sed -i "s/PORT/$port/" "$scratch/prometheus.yml"
  timeout 12 prometheus --config.file="$scratch/prometheus.yml" --storage.tsdb.path="$scratch/data" \
    --web.listen-address="127.0.0.1:$port" --log.level=error
  ;;
envoy* | nginx | haproxy | caddy) scratch=$scratch bash "$folder/proxy.sh" "$name" "$url" ;;
git) GIT_CONFIG_NOSYSTEM=1 one_by_one git ls-remote "$url/a.git" ;;
py-*) "$clients/python/bin/python" -B "$folder/clients.py" "${name#py-}" "$url" "$count" ;;
js-*)
  node --preserve-symlinks-main "$clients/clients.mjs" "${name#js-}" "$url" "$count"
  ;;
*)
  echo "client.sh: there is no client $name" >&2
  exit 2
  ;;
esac
