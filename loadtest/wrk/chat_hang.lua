-- A short chat for the first of four engines, which takes it and never answers.
wrk.method = "POST"
wrk.path = "/v1/chat/completions"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["X-Fault"] = "hang"
wrk.body = '{"model":"m1","max_tokens":4,"messages":[{"role":"user","content":"hello"}]}'
