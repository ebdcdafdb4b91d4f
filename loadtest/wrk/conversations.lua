-- Prepared chats of a given size, sent in turn; each is another conversation from its first message on.
dofile(debug.getinfo(1, "S").source:match("^@(.*/)") .. "report.lua")

local words = { "prefix", "engine", "router", "cache", "token", "block", "answer", "turn", "load", "queue" }

local function text(seed, bytes)
  local parts, length, state = {}, 0, seed
  while length < bytes do
    state = (state * 1103515245 + 12345) % 2147483648
    local word = words[1 + math.floor(state / 65536) % #words]
    parts[#parts + 1] = word
    length = length + #word + 1
  end
  return table.concat(parts, " "):sub(1, bytes)
end

local function chat(index, bytes)
  local messages, role = {}, "user"
  for turn = 1, 7 do
    messages[turn] = string.format('{"role":"%s","content":"%s"}', role, text(index * 7 + turn, math.floor(bytes / 7) - 32))
    role = role == "user" and "assistant" or "user"
  end
  return '{"model":"fake-llm","max_tokens":8,"messages":[' .. table.concat(messages, ",") .. "]}"
end

function conversations(count, bytes)
  local requests, at = {}, 0
  local headers = { ["Content-Type"] = "application/json" }
  return function()
    if #requests == 0 then
      for index = 1, count do
        requests[index] = wrk.format("POST", "/v1/chat/completions", headers, chat(index, bytes))
      end
    end
    at = at % count + 1
    return requests[at]
  end
end
