#!/usr/bin/env bash
# Where conversations are sent, and what that costs: the same conversations over the same fake engines, by each policy of the
# router and by every other router that is installed. Prints a table: share found in cache, time to first token, spread.
. "$(dirname "$0")/common.sh"
. "$root/loadtest/rivals.sh"

wanted=(roundrobin leastload prefixaware-0 prefixaware-4096 prefixaware-8192 ttft sglang-router vllm-router smg)
engines=4
kv_tokens=60000
transcripts=""
load_flags=(--conversations 60 --rate 5 --max-tokens 48)
out=""
usage="usage: loadtest/quality.sh [--transcripts FILE | --shared] [--by A,B] [--seed N] [--json FOLDER]
  --transcripts  replay recorded conversations (such as tau-bench's), 60 of them over four engines; else made-up ones
  --shared       12 conversations of 5 turns, four at a time, one system prompt of 6,000 bytes, over two engines
  --by           roundrobin leastload prefixaware-N ttft sglang-router vllm-router smg (default: all that are installed)
  --json         also keep each report there"
seed=1
while [ $# -gt 0 ]; do
  case $1 in
    --transcripts) transcripts=${2:-} ;;
    --shared)
      engines=2
      kv_tokens=40960
      load_flags=(--conversations 12 --turns 5 --at-once 4 --rate 0 --system-bytes 6000 --turn-bytes 2500 --think-ms 100)
      set -- "$1" "" "${@:2}"
      ;;
    --by) IFS=, read -ra wanted <<<"${2:-}" ;;
    --seed) seed=${2:-} ;;
    --json) out=${2:-} ;;
    -h | --help) echo "$usage" && exit 0 ;;
    *) fail "unknown argument $1; $usage" ;;
  esac
  shift 2 || fail "$1 wants a value; $usage"
done
[ -z "$transcripts" ] || [ -r "$transcripts" ] || fail "--transcripts $transcripts: cannot be read"
[ -z "$transcripts" ] || load_flags+=(--transcripts "$transcripts")
[ -z "$out" ] || mkdir -p "$out"

build

columns=()
for by in "${wanted[@]}"; do
  name=trieway
  ROUTER_FLAGS=""
  case $by in
    prefixaware-*) ROUTER_FLAGS="--routing-logic prefixaware --prefix-min-match-length ${by#*-}" ;;
    roundrobin | leastload | ttft) ROUTER_FLAGS="--routing-logic $by" ;;
    *) name=$by ;;
  esac
  if [ -z "$(program_of "$name")" ]; then
    say "$name is missing ($(how_to_install "$name")): its column is left out."
    continue
  fi
  say "Replaying by $by …"
  start_engines "$engines" --kv-tokens "$kv_tokens" --prefill-tokens-per-s 10000 --decode-tokens-per-s 100
  if start_proxy "$by" "$name" "${ports[*]}"; then
    run "$loadtest" load --url "http://127.0.0.1:${proxy_port[$by]}" "${load_flags[@]}" --engines "$engines" --seed "$seed" \
      --allow-errors --json "$work/$by.json" >"$work/$by.txt" || fail "the client failed under $by: $(cat "$work/$by.txt")"
    [ -z "$out" ] || cp "$work/$by.json" "$out/$by.json"
    columns+=("$by=$work/$by.json")
  fi
  stop_all
done

echo
"$loadtest" compare "${columns[@]}"
