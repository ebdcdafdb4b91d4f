-- A short chat with an answer of 1 MB of known length: what a batch job or a tool's result asks for.
dofile(debug.getinfo(1, "S").source:match("^@(.*/)") .. "report.lua")

wrk.method = "POST"
wrk.path = "/v1/chat/completions"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"model":"fake-llm","max_tokens":262144,"messages":[{"role":"user","content":"Count to a million."}]}'
