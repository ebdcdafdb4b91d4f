-- Short chats for the second to fourth of four engines, in turns; each prompt is another one.
dofile(debug.getinfo(1, "S").source:match("^@(.*/)") .. "report.lua")

local headers = { ["Content-Type"] = "application/json" }
local turn = 0

function request()
  turn = turn + 1
  local body = '{"model":"m%d","max_tokens":4,"messages":[{"role":"user","content":"hello %d"}]}'
  return wrk.format("POST", "/v1/chat/completions", headers, body:format(2 + turn % 3, turn))
end
