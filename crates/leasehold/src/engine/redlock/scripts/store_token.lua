local view = view_for(key, text, id, ARGV[5])
local mine, highest = view.mine, math.max(view.highest, min_token)
if cool_down_until > now then return { 'cooling-down' } end
if not mine or mine.attempt ~= attempt then return { 'missing' } end
if mine.token == token then return { 'stored' } end
if view.owner_token > 0 and view.owner_token ~= token then return { 'owner', view.owner_token } end
if token <= highest and token ~= view.owner_token then return { 'low', highest } end
mine.token = token
store(key, view, mine)
return { 'stored' }
