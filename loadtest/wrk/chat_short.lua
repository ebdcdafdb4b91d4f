-- A short chat, not streamed: the smallest request that is routed.
dofile(debug.getinfo(1, "S").source:match("^@(.*/)") .. "report.lua")

wrk.method = "POST"
wrk.path = "/v1/chat/completions"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"model":"fake-llm","max_tokens":8,"messages":[{"role":"user","content":"What is the capital of France?"}]}'
