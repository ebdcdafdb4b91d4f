-- 16 different prompts of 100 KB in turn: long documents.
dofile(debug.getinfo(1, "S").source:match("^@(.*/)") .. "conversations.lua")
request = conversations(16, 100 * 1024)
