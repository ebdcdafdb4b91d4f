-- A short chat, streamed: ten events, each a chunk of its own.
dofile(debug.getinfo(1, "S").source:match("^@(.*/)") .. "report.lua")

wrk.method = "POST"
wrk.path = "/v1/chat/completions"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"model":"fake-llm","max_tokens":8,"stream":true,"messages":[{"role":"user","content":"What is the capital of France?"}]}'
