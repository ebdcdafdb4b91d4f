-- 64 different conversations of 6 KB in turn: a few turns behind a system prompt, the routed prompt of everyday.
dofile(debug.getinfo(1, "S").source:match("^@(.*/)") .. "conversations.lua")
request = conversations(64, 6 * 1024)
