-- One line that scripts/bench reads: requests, seconds, latency in µs, failures.
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("RESULT requests=%d us=%d p50=%d p90=%d p99=%d max=%d failed=%d\n",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(90), latency:percentile(99),
    latency.max, e.connect + e.read + e.write + e.status + e.timeout))
end
