#!/usr/bin/env bash
# curl's ways to speak HTTP that a proxy may stumble over. $1: the router's URL.
set -u
url=$1
body='{"model": "fake-llm", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}'
large=$(mktemp)
trap 'rm -f "$large"' EXIT
failed=0

check() { # NAME EXPECTED ACTUAL
  if [ "$2" = "$3" ]; then echo "ok    curl: $1"; else echo "FAIL  curl: $1: '$3' and not '$2'"; failed=1; fi
}

post() { curl -sS -m 20 -o /dev/null -H 'Content-Type: application/json' -d "$body" "$@"; }

if ! command -v curl >/dev/null; then
  echo "skip  curl: not installed"
  exit 0
fi
chat=$url/v1/chat/completions
check "two requests on one connection" "200 1 200 0 " "$(post -w '%{http_code} %{num_connects} ' "$chat" --next -sS -m 20 -o /dev/null -H 'Content-Type: application/json' -d "$body" -w '%{http_code} %{num_connects} ' "$chat")"
check "HTTP/1.0" "200" "$(post --http1.0 -w '%{http_code}' "$chat")"
check "the offer of an upgrade to HTTP/2 is ignored" "200 1.1" "$(post --http2 -w '%{http_code} %{http_version}' "$chat")"
{ printf '{"model": "fake-llm", "max_tokens": 4, "prompt": "'; head -c 3000000 /dev/zero | tr '\0' a; printf '"}'; } >"$large"
check "Expect: 100-continue" "200" "$(curl -sS -m 20 -o /dev/null -w '%{http_code}' -H 'Content-Type: application/json' -H 'Expect: 100-continue' --data-binary "@$large" "$url/v1/completions")"
check "a chunked body" "200" "$(curl -sS -m 20 -o /dev/null -w '%{http_code}' -H 'Content-Type: application/json' -H 'Transfer-Encoding: chunked' --data-binary "@$large" "$url/v1/completions")"
check "a query, and compression offered" "200" "$(post --compressed -w '%{http_code}' "$chat?a=b%20c&d")"
check "HEAD" "200" "$(curl -sS -m 20 -I -o /dev/null -w '%{http_code}' "$url/v1/models")"
check "a stream to its end" "data: [DONE]" "$(curl -sS -N -m 20 -H 'Content-Type: application/json' -d "${body%\}}, \"stream\": true}" "$chat" | grep -a . | tail -1 | tr -d '\r')"
check "a client that gives up" "28" "$(curl -sS -m 0.3 -o /dev/null -H 'Content-Type: application/json' -H 'X-Fault: hang' -d "$body" "$chat" 2>/dev/null; echo $?)"
exit $failed
