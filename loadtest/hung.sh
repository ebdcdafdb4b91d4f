#!/usr/bin/env bash
# What a hung engine costs the others: latency of requests to three of four engines, with the fourth well and with 200
# requests hanging on it, in interleaved rounds. Prints each round and the medians. Needs wrk, and a quiet machine.
#
#   loadtest/hung.sh [ROUNDS] [SECONDS]     10 rounds of 3 seconds if not given
. "$(dirname "$0")/common.sh"

rounds=${1:-10}
seconds=${2:-3}
hanging=200
[[ $rounds =~ ^[1-9][0-9]*$ && $seconds =~ ^[1-9][0-9]*$ ]] || fail "usage: loadtest/hung.sh [ROUNDS] [SECONDS]"
command -v wrk >/dev/null || fail "wrk is missing: apt-get install wrk"

build
start_engines 4 --model m1,m2,m3,m4
start_router --static-models m1,m2,m3,m4 --static-backend-health-check-interval 3600

# measure NAME: the p50 and p99 of a round, in µs, go to the file of that name.
measure() {
  local line
  line=$(wrk -t1 -c2 -d"${seconds}s" -s "$root/loadtest/wrk/chat_others.lua" "http://127.0.0.1:$router_port" | grep '^RESULT') \
    || fail "wrk did not end well"
  [[ $line =~ failed=0 ]] || fail "requests failed: $line"
  sed 's/.*p50=\([0-9]*\).*p99=\([0-9]*\).*/\1 \2/' <<<"$line" >>"$work/$1"
}

median() { # NAME COLUMN
  cut -d' ' -f"$2" "$work/$1" | sort -n | sed -n "$(((rounds + 1) / 2))p"
}

for round in $(seq "$rounds"); do
  measure well
  wrk -t1 -c"$hanging" -d600s -s "$root/loadtest/wrk/chat_hang.lua" "http://127.0.0.1:$router_port" >/dev/null &
  children+=("$!")
  sleep 0.3
  measure hung
  stop "${children[-1]}"
  unset 'children[-1]'
  say "round $round of $rounds: p50 p99 µs, well $(tail -n 1 "$work/well"), hung $(tail -n 1 "$work/hung")"
done
for column in 1 2; do
  echo "median p$([ $column = 1 ] && echo 50 || echo 99): $(median well $column) µs with the fourth engine well, $(median hung $column) µs with it hung"
done
